from hypothesis import given
from hypothesis import strategies as st

from lmtrain.inference.generation import Generation, Request, TextStream

PIECES = [bytes([byte]) for byte in range(256)]


def written(text, **settings):
    generation = Generation(Request(prompt=[0], num_new_tokens=50, **settings), pieces=PIECES)
    for byte in text.encode():
        delta = generation.add(byte, None, most_tokens=None)
        if delta.finish_reason:
            break
    return generation


def test_a_text_ends_by_what_comes_first():
    assert written("a" * 60).finish_reason == "length"
    assert len(written("a" * 60).new_tokens) == 50
    assert written("ab.", end_ids=frozenset({ord(".")})).text == "ab"
    stopped = written("ab END c", stops=("END",))
    assert (stopped.text, stopped.finish_reason) == ("ab ", "stop")


@given(st.binary(max_size=40), st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_pieces_add_up_to_the_text_before_the_first_stop_string(data, stops):
    stream = TextStream(PIECES, stops=stops)
    text = "".join([*(stream.add(byte) for byte in data), stream.finish()])
    whole = data.decode("utf-8", errors="replace")
    found = [at for stop in stops if (at := whole.find(stop)) >= 0]
    if not found:
        assert text == whole
    else:  # the stop string that is complete first wins, which may begin later
        ends = min(whole.find(stop) + len(stop) for stop in stops if stop in whole)
        assert text in {whole[:at] for at in found if at < ends}
