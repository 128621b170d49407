from dataclasses import replace

import torch

from lmtrain.inference.cache_step import Piece
from lmtrain.inference.joint_texts import HEADROOM_BLOCKS, JointTexts, keep_places

SIZE = 4
TEXTS = [Piece([7, 2, 5], 8, 1), Piece([3], 1, 1)]


def nexts(texts, *, num_tokens=1):
    return [replace(text, start=text.start + num_tokens) for text in texts]


def joint(texts, window_tokens=None):
    return JointTexts.of(texts, window_tokens=window_tokens, block_tokens=SIZE)


def after(before, texts, window_tokens=None):
    return before.after(texts, window_tokens=window_tokens, block_tokens=SIZE)


def test_the_blocks_that_are_seen_are_copied_with_room_for_more():
    assert joint(TEXTS).table(block_tokens=SIZE) == [[7, 2, 5], [3, 0, 0]]
    assert joint(TEXTS, window_tokens=2).table(block_tokens=SIZE) == [[2, 5], [3, 0]]
    assert joint(TEXTS).num_room_blocks == 3 + HEADROOM_BLOCKS


def test_the_same_texts_go_on_and_their_tokens_stand_behind_the_others():
    then = after(joint(TEXTS), nexts(TEXTS))
    assert (then.ends, then.changed, then.is_new) == ([10, 3], [], False)
    assert then.last_rows(block_tokens=SIZE) == [9, (3 + HEADROOM_BLOCKS) * SIZE + 2]


def test_other_texts_and_other_blocks_are_copied_beside_those_that_go_on():
    before = joint(TEXTS)
    assert after(before, nexts(TEXTS[:1])).changed == []
    assert after(before, [nexts(TEXTS)[0], TEXTS[0]]).changed == [1]
    assert after(before, TEXTS).changed == [0, 1]  # the same token again
    assert after(before, nexts(TEXTS, num_tokens=2)).changed == [0, 1]  # a pass without them
    others = [replace(each, blocks=[9, *each.blocks[1:]]) for each in nexts(TEXTS)]
    then = after(before, others)
    assert (then.changed, then.is_new) == ([0, 1], False)
    assert then.table(block_tokens=SIZE) == [[9, 2, 5], [9, 0, 0]]


def test_more_texts_or_longer_ones_than_there_is_room_for_are_laid_out_anew():
    more = after(joint(TEXTS), [*nexts(TEXTS), TEXTS[1]])
    assert (more.is_new, more.changed, more.num_room_texts) == (True, [0, 1, 2], 4)
    texts, before, num_passes = TEXTS, joint(TEXTS), 0
    while not (then := after(before, texts := nexts(texts))).is_new:
        before, num_passes = then, num_passes + 1
    assert num_passes == (3 + HEADROOM_BLOCKS) * SIZE - 9
    windowed = joint(TEXTS, 2)
    long = [nexts(TEXTS)[0], Piece([3] * 9, 33, 1)]  # seen are its last tokens alone
    assert (after(windowed, long, 2).changed, after(windowed, long, 2).firsts) == ([1], [1, 8])


def test_texts_keep_their_places_and_new_or_last_ones_take_those_of_the_ended():
    assert keep_places([], [1, 2, 3]) == [1, 2, 3]
    assert keep_places([1, 2, 3], [3, 1, 2]) == [1, 2, 3]
    assert keep_places([1, 2, 3, 4], [2, 3, 4, 5, 6]) == [5, 2, 3, 4, 6]
    assert keep_places([1, 2, 3, 4], [2, 3]) == [3, 2]
    assert keep_places([1, 2], []) == []


def test_a_mask_hides_what_follows_and_what_is_behind_a_window():
    def seen(texts, window_tokens=None):
        of = joint(texts, window_tokens)
        mask = of.mask(window_tokens=window_tokens, block_tokens=SIZE, dtype=torch.float32, device=torch.device("cpu"))
        return None if mask is None else [(row[0] == 0).nonzero().flatten().tolist() for row in mask[0]]

    assert seen(TEXTS) == [list(range(9)), [0, 1]]
    assert seen(TEXTS, 2) == [[3, 4], [0, 1]]  # of a copy that begins with the text's second block
    assert seen(TEXTS[:1]) is None
