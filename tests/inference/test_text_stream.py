from hypothesis import given
from hypothesis import strategies as st

from lmtrain.inference.text_stream import TextStream

BYTES = [bytes([byte]) for byte in range(256)]


def test_half_a_character_waits_for_the_rest():
    stream = TextStream(BYTES)
    assert [stream.add(byte) for byte in "é€".encode()] == ["", "é", "", "", "€"]
    assert stream.finish() == ""


def test_half_a_character_at_the_end_is_marked():
    stream = TextStream(BYTES)
    assert stream.add("€".encode()[0]) == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def test_a_stop_string_across_tokens_is_never_shown():
    stream = TextStream([b"one S", b"TO", b"P two"], stops=["STOP"])
    assert [stream.add(token) for token in range(3)] == ["one ", "", ""]
    assert stream.is_stopped
    assert stream.finish() == ""


def test_what_only_looked_like_a_stop_string_is_shown():
    stream = TextStream([b"ST", b"OOP", b"ST"], stops=["STOP"])
    assert [stream.add(token) for token in range(3)] == ["", "STOOP", ""]
    assert stream.finish() == "ST"


def test_ids_of_no_text_say_nothing():
    stream = TextStream([b"", b"a"])
    assert [stream.add(0), stream.add(1), stream.add(99)] == ["", "a", ""]


@given(st.binary(max_size=40), st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_pieces_add_up_to_the_text_before_the_first_stop_string(data, stops):
    stream = TextStream(BYTES, stops=stops)
    text = "".join([*(stream.add(byte) for byte in data), stream.finish()])
    whole = data.decode("utf-8", errors="replace")
    found = [at for stop in stops if (at := whole.find(stop)) >= 0]
    if not found:
        assert text == whole
    else:  # the stop string that is complete first wins, which may begin later
        ends = min(whole.find(stop) + len(stop) for stop in stops if stop in whole)
        assert text in {whole[:at] for at in found if at < ends}
