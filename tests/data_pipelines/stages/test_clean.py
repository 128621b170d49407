import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair, uniform
from lmtrain.errors import ConfigurationError

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]))


def repair(text):
    return UnicodeRepair().repair(text)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", "\x85", "\u2028", "\u2029"])
def test_every_line_end_becomes_a_newline(line_end):
    assert uniform(f"a{line_end}b{line_end}") == "a\nb\n"


def test_lone_surrogates_become_replacements_and_pairs_characters():
    assert uniform("a\ud800b") == "a\ufffdb"
    assert uniform("\ud83d\ude00") == "😀"


@pytest.mark.parametrize("character", ["\0", "\x07", "\x1b", "\x7f", "\x80", "\x9f", "\ufeff"])
def test_what_is_no_text_is_removed(character):
    assert repair(f"{character}a{character}b") == "ab"


@pytest.mark.parametrize("character", ["\t", "\n", "\x0b", "\x0c", "\xa0", "\u200d", "\ufffd"])
def test_white_space_and_joiners_stay(character):
    assert repair(f"a{character}b") == f"a{character}b"


def test_either_repair_can_be_left_out():
    text = "itâ€™s\0\r\n"
    assert UnicodeRepair(mojibake=False).repair(text) == "itâ€™s\n"
    assert UnicodeRepair(control_characters=False).repair(text) == "it\u2019s\0\n"


@given(ANY_TEXT)
def test_what_comes_out_is_utf_8_and_stays_as_it_is(text):
    once = repair(text)
    assert repair(once) == once
    assert once.encode().decode() == once


@given(
    st.text(
        alphabet=st.characters(
            exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029\ufeff", min_codepoint=0x100
        )
    )
)
def test_clean_text_beyond_latin_is_not_touched(text):
    assert repair(text) == text


def test_a_conversation_is_repaired_turn_by_turn_and_its_roles_stay():
    messages = ({"role": "user", "content": "a\r\nb\0"}, {"role": "assistant", "content": "itâ€™s"})
    repaired = UnicodeRepair().look_at(Document("a", "", messages))
    assert repaired == Document(
        "a", "", ({"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "it\u2019s"})
    )


@pytest.mark.parametrize(
    ("limits", "text", "reason"),
    [
        ({}, " \n\t", "empty"),
        ({"min_characters": 3}, "ab   ", "too short"),
        ({"max_characters": 3}, "abcd", "too long"),
        ({"min_words": 3}, "two words", "too few words"),
        ({"max_words": 3}, "a b c d", "too many words"),
        ({"min_characters": 3, "max_characters": 3, "min_words": 1, "max_words": 1}, " abc\n", None),
    ],
)
def test_length_filter_says_which_limit_is_broken(limits, text, reason):
    document = Document("a", text)
    expected = document if reason is None else Skipped("a", reason)
    assert list(LengthFilter(**limits)([document])) == [expected]


def test_the_length_of_a_conversation_is_that_of_its_turns():
    document = Document("a", "", ({"role": "user", "content": "hello"},))
    assert LengthFilter().look_at(document) == document
    assert LengthFilter(min_characters=9).look_at(document) == Skipped("a", "too short")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_characters": -1}, r"cleaning\.length\.min_characters=-1 is negative; nearest valid: 0"),
        ({"min_words": 5, "max_words": 4}, r"max_words=4 is below cleaning\.length\.min_words=5.*nearest valid: 5"),
    ],
)
def test_limits_that_leave_nothing_are_refused(limits, message):
    with pytest.raises(ConfigurationError, match=message):
        LengthFilter(**limits)


def test_what_others_dropped_passes_through():
    assert list(UnicodeRepair()([Skipped("a", "why")])) == [Skipped("a", "why")]


def test_the_fingerprint_tells_every_setting():
    stages = [UnicodeRepair(), UnicodeRepair(mojibake=False), UnicodeRepair(control_characters=False)]
    lengths = [LengthFilter(), LengthFilter(max_words=3), LengthFilter(min_words=3), LengthFilter(max_characters=3)]
    parts = [str(stage.fingerprint_parts()) for stage in (*stages, *lengths)]
    assert len(set(parts)) == len(parts)


@given(st.text(alphabet=st.characters(max_codepoint=0x7F)))
def test_text_of_ascii_alone_is_repaired_as_any_other(text):
    assert (
        UnicodeRepair(mojibake=False).repair(f"{text}\u20ac") == f"{UnicodeRepair(mojibake=False).repair(text)}\u20ac"
    )


SUSPECTS = (
    "aé\xc3\xc2\xe2\xf0\x80\x85\x9f\xa0\xa9\x99\u20ac\u2019\u2122\u0153"
    "\u2028\u2029\ufeff\ufffd\r\n\x00\x0b\x1b\x7f\ud800\U0001f600 "
)


@given(st.text(alphabet=st.one_of(st.sampled_from(SUSPECTS), st.characters()), max_size=6), st.booleans())
def test_the_short_look_at_sound_text_misses_nothing(text, mojibake):
    repair = UnicodeRepair(mojibake=mojibake)
    quick = repair.repair(text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("data_pipelines.stages.clean._is_sound", lambda _: False)
        assert quick == repair.repair(text)
