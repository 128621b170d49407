import numpy as np
import pytest

from lmtrain.tokenizers.flat_ids import encode_around, flatten


def test_ids_lie_back_to_back():
    ids, ends = flatten([[3, 1], [], [4]])
    assert (ids.tolist(), ends.tolist()) == ([3, 1, 4], [2, 2, 3])
    assert (ids.dtype, ends.dtype) == (np.uint32, np.int64)
    assert [part.tolist() for part in flatten([])] == [[], []]


@pytest.mark.parametrize("odd", [[], [0], [2], [0, 1, 2], [1, 2]])
def test_odd_texts_are_encoded_otherwise_and_stay_in_their_places(odd):
    texts = ["a", "bb", "ccc"]

    def usual(some):
        return flatten([[1] * len(text) for text in some])

    def otherwise(some):
        return flatten([[9] * len(text) for text in some])

    ids, ends = encode_around(odd, texts, usual=usual, otherwise=otherwise)
    assert ends.tolist() == [1, 3, 6]
    assert ids.tolist() == [9 if place in odd else 1 for place, text in enumerate(texts) for _ in text]
