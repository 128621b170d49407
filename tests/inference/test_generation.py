import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.inference.generation import Generation, Request

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


def test_a_stop_string_that_only_began_is_part_of_a_full_text():
    assert written("x" * 48 + "EN", stops=("END",)).text == "x" * 48 + "EN"


def test_texts_of_one_request_draw_differently_and_each_the_same_again():
    def drawn(seed, index):
        return Generation(Request(prompt=[0], num_new_tokens=1, seed=seed, index=index), pieces=PIECES).draw()

    assert drawn(1, 0) == drawn(1, 0)
    assert len({drawn(1, 0), drawn(1, 1), drawn(2, 0), drawn(None, 0), drawn(None, 0)}) == 5


@pytest.mark.parametrize(("settings", "message"), [({"prompt": []}, "no tokens"), ({"num_new_tokens": 0}, "below 1")])
def test_a_request_for_nothing_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        Request(**{"prompt": [1], "num_new_tokens": 1, **settings})
