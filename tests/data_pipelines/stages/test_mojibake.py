import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.stages.mojibake import undo_mojibake


def spoil(text, encoding):
    """Read a text's bytes wrongly, a byte that Windows-1252 leaves open as its own number."""
    shown = [bytes([byte]).decode(encoding, errors="replace") for byte in text.encode()]
    return "".join(
        chr(byte) if character == "\ufffd" else character for byte, character in zip(text.encode(), shown, strict=True)
    )


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
@pytest.mark.parametrize(
    "text", ["it\u2019s", "caf\xe9 na\xefve", "日本語", "😀", "“quoted” — here", "Größe, Füße", "Привет, мир"]
)
def test_what_was_read_wrongly_comes_back(text, encoding):
    spoiled = spoil(text, encoding)
    assert undo_mojibake(spoiled) == text
    assert undo_mojibake(spoil(spoiled, "latin-1")) == text


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "caf\xe9",
        "IRM\xc3\u2026",  # one run of two: somebody's capitals, perhaps
        "\xc2\xa35",
        "na\xc3\xafve and caf\xe9, caf\xc3\xa9",  # a character that no mojibake makes: leave all of the line
        "\xe0 la carte \xe0 la mode",
        "\xc3\xa9\xc3",  # a run that breaks off
    ],
)
def test_what_is_not_certain_stays(text):
    assert undo_mojibake(text) == text


def test_lines_are_judged_one_by_one():
    assert undo_mojibake("itâ€™s\ncaf\xe9\n\xc2\xa35") == "it\u2019s\ncaf\xe9\n\xc2\xa35"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"], min_codepoint=0x80), min_size=2))
def test_any_text_of_several_characters_beyond_ascii_comes_back(text):
    assert undo_mojibake(spoil(text, "latin-1")) == undo_mojibake(text)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], max_codepoint=0x17F)))
def test_a_second_time_changes_nothing(text):
    once = undo_mojibake(text)
    assert undo_mojibake(once) == once
