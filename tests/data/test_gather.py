import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.data.gather import MOST_BLOCK_BYTES, address_of, copy_blocks, cover, gather_rows


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    block_lengths=st.sampled_from([(1,), (8, 1), (13, 4, 1)]),
    dtype=st.sampled_from([np.uint16, np.uint32]),
    data=st.data(),
)
def test_pieces_of_several_arrays_come_to_their_places(lengths, block_lengths, dtype, data):
    sources = [np.arange(50, dtype=dtype) + 100 * number for number in range(3)]
    chosen = [data.draw(st.integers(0, 2)) for _ in lengths]
    offsets = np.array([data.draw(st.integers(0, 50 - length)) for length in lengths])
    gaps = np.array([data.draw(st.integers(0, 2)) for _ in lengths])
    wanted = np.array(lengths)
    places = np.cumsum(wanted + gaps) - wanted
    addresses = np.array([address_of(sources[number]) for number in chosen]) + offsets * np.dtype(dtype).itemsize
    blocks = cover(addresses, wanted, places, item_bytes=np.dtype(dtype).itemsize, block_lengths=block_lengths)
    target = np.full(int((wanted + gaps).sum()) + 3, 9999, dtype)
    expected = target.copy()
    copy_blocks(blocks, 0, target)
    for number, offset, length, place in zip(chosen, offsets, lengths, places, strict=True):
        expected[place : place + length] = sources[number][offset : offset + length]
    assert target.tolist() == expected.tolist(), "and nothing is written elsewhere"


@pytest.mark.parametrize("offset", [0, 1])
def test_addresses_need_not_be_aligned(offset):
    raw = np.arange(64, dtype=np.uint8)
    source = raw[offset : offset + 40].view(np.uint16)
    target = np.zeros(20, np.uint16)
    lengths = np.array([20])
    blocks = cover(np.array([address_of(source)]), lengths, np.array([0]), item_bytes=2, block_lengths=(8, 1))
    copy_blocks(blocks, 0, target)
    assert target.tolist() == source.tolist()


def test_only_the_blocks_of_the_target_are_copied():
    source = np.arange(30, dtype=np.uint16)
    addresses = address_of(source) + 2 * np.array([0, 10, 20])
    blocks = cover(addresses, np.full(3, 10), np.array([0, 10, 20]), item_bytes=2, block_lengths=(10, 1))
    target = np.zeros((2, 5), np.uint16)
    copy_blocks(blocks, 10, target)
    assert target.reshape(-1).tolist() == list(range(10, 20))
    copy_blocks(blocks, 100, target)
    assert target.reshape(-1).tolist() == list(range(10, 20)), "nothing lies there"


def test_the_longest_block_is_one_that_numpy_can_count():
    source = np.arange(MOST_BLOCK_BYTES, dtype=np.uint8)
    blocks = cover(np.array([address_of(source)]), np.array([source.size]), np.array([0]), item_bytes=1, block_lengths=(
        MOST_BLOCK_BYTES, 1
    ))
    target = np.zeros_like(source)
    copy_blocks(blocks, 0, target)
    assert (target == source).all()


def test_rows_of_one_length_are_gathered_at_once():
    source = np.arange(30, dtype=np.uint32)
    addresses = address_of(source) + 4 * np.array([20, 0, 7])
    (rows,) = cover(addresses, np.full(3, 5), np.arange(3) * 5, item_bytes=4, block_lengths=(5, 1))
    found = gather_rows(rows, 1, 3, source.dtype)
    assert found.tolist() == [[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]]
    assert found.flags.writeable
