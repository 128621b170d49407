import pytest

from data_pipelines.sources.utf8 import Utf8, count_invalid


@pytest.mark.parametrize(
    ("content", "text", "num_replaced"),
    [
        (b"plain\n", "plain\n", 0),
        ("Grüße".encode(), "Grüße", 0),
        (b"x" * 200 + b"\xff", "x" * 200 + "\ufffd", 1),
        (b"", "", 0),
        (("\ufffd" * 50).encode(), "\ufffd" * 50, 0),
    ],
)
def test_stray_bytes_are_replaced_and_counted(content, text, num_replaced):
    utf8 = Utf8()
    assert utf8.decode(content, where="here") == text
    assert utf8.num_replaced == num_replaced
    assert (utf8.first == "here") == (num_replaced > 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"ab\0c", "has NUL bytes"),
        ("UTF-16".encode("utf-16"), "has NUL bytes"),
        (bytes(range(128, 256)), "invalid sequences in 128 bytes"),
        ("Größe ".encode("latin-1") * 9, "invalid sequences in 54 bytes"),
    ],
)
def test_what_is_no_text_is_refused_with_the_reason(content, reason):
    utf8 = Utf8()
    with pytest.raises(ValueError, match=reason):
        utf8.decode(content, where="here")
    assert utf8.note() is None


def test_the_note_says_how_many_and_where_the_first_was():
    utf8 = Utf8()
    for where in ("a.txt", "b.txt"):
        utf8.decode(b"x" * 200 + b"\xff", where=where)
    assert utf8.note() == "  places that are not UTF-8 and became U+FFFD: 2, the first in a.txt"


def test_replacement_characters_that_are_text_do_not_count_as_invalid():
    assert count_invalid("\ufffd".encode() + b"\xff") == 1
