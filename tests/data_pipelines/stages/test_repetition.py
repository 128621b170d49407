import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.repetition import GopherRepetition
from tests.data_pipelines.corpus import GOOD, prose

CHAT = Document("chat", "", ({"role": "user", "content": "hi " * 99},))


def reason(text, **limits):
    item = GopherRepetition(**limits).look_at(Document("a", text))
    return item.reason if isinstance(item, Skipped) else None


def test_prose_and_conversations_pass():
    assert list(GopherRepetition()([*GOOD, CHAT])) == [*GOOD, CHAT]


def different_lines(count):
    return prose(5, 4 * count).split("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n".join([*different_lines(7), *["read more"] * 5]), "gopher: duplicate lines"),
        ("\n".join([*different_lines(8), *["read more"] * 4]), None),
        ("\n\n".join([*different_lines(7), *["read more"] * 5]), "gopher: duplicate paragraphs"),
        ("\n".join(different_lines(12) + different_lines(12)[:1]), None),
        ("\n".join(different_lines(3) + different_lines(3)[:1]), "gopher: characters in duplicate lines"),
        ("\n\n".join(different_lines(3) + different_lines(3)[:1]), "gopher: characters in duplicate paragraphs"),
        (" ".join(["good night", *different_lines(1), *["good night"] * 9]), "gopher: top 2-word phrase"),
        ("", None),
        ("two words", None),
    ],
)
def test_it_says_which_rule_is_broken(text, expected):
    assert reason(text) == expected


@pytest.mark.parametrize(
    ("num_words", "most", "expected"),
    [(5, 0.33, "gopher: repeated 5-word phrases"), (5, 0.34, None), (10, 0.33, "gopher: repeated 10-word phrases")],
)
def test_a_third_that_has_stood_there_before_is_a_third(num_words, most, expected):
    phrase = [f"w{number:02d}" for number in range(10)]
    others = [f"o{number:02d}" for number in range(10)]
    text = " ".join([*phrase, *others, *phrase])
    limits = {"max_top_phrase_fractions": {}, "max_repeated_phrase_fractions": {num_words: most}}
    assert reason(text, **limits) == expected


def test_no_phrase_is_counted_twice_where_repeats_overlap():
    limits = {"max_top_phrase_fractions": {}, "max_repeated_phrase_fractions": {2: 0.999}}
    assert reason("ab " * 100, max_duplicate_line_fraction=1, **limits) is None


def test_the_fingerprint_tells_every_setting():
    assert GopherRepetition().fingerprint_parts() != GopherRepetition(max_top_phrase_fractions={}).fingerprint_parts()
    assert GopherRepetition().fingerprint_parts() != GopherRepetition(max_duplicate_line_fraction=1).fingerprint_parts()
