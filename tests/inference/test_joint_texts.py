from dataclasses import replace

import torch

from lmtrain.inference.cache_step import Piece
from lmtrain.inference.joint_texts import HEADROOM_BLOCKS, JointTexts

SIZE = 4
TEXTS = [Piece([7, 2, 5], 8, 1), Piece([3], 1, 1)]


def nexts(texts, *, num_tokens=1):
    return [replace(text, start=text.start + num_tokens) for text in texts]


def joint(texts, window_tokens=None):
    return JointTexts.of(texts, window_tokens=window_tokens, block_tokens=SIZE)


def test_the_blocks_that_are_seen_are_copied_with_room_for_more():
    room = [0] * HEADROOM_BLOCKS
    assert joint(TEXTS).table(block_tokens=SIZE) == [[7, 2, 5, *room], [3, 0, 0, *room]]
    assert joint(TEXTS, window_tokens=2).table(block_tokens=SIZE) == [[2, 5, *room], [3, 0, *room]]


def test_the_same_texts_go_on_and_their_tokens_stand_behind_the_others():
    after = joint(TEXTS).after(nexts(TEXTS), block_tokens=SIZE)
    assert after is not None
    assert after.ends == [10, 3]
    assert after.last_rows(block_tokens=SIZE) == [9, (3 + HEADROOM_BLOCKS) * SIZE + 2]


def test_other_texts_other_blocks_and_tokens_without_room_are_copied_anew():
    before = joint(TEXTS)
    assert before.after(nexts(TEXTS[:1]), block_tokens=SIZE) is None
    assert before.after(TEXTS, block_tokens=SIZE) is None  # the same token again
    assert before.after(nexts(TEXTS, num_tokens=2), block_tokens=SIZE) is None  # a pass without them
    assert (
        before.after([replace(each, blocks=[9, *each.blocks[1:]]) for each in nexts(TEXTS)], block_tokens=SIZE) is None
    )
    texts, num_passes = TEXTS, 0
    while (after := before.after(texts := nexts(texts), block_tokens=SIZE)) is not None:
        before, num_passes = after, num_passes + 1
    assert num_passes == (3 + HEADROOM_BLOCKS) * SIZE - 9


def test_a_mask_hides_what_follows_and_what_is_behind_a_window():
    def seen(texts, window_tokens=None):
        of = joint(texts, window_tokens)
        mask = of.mask(window_tokens=window_tokens, block_tokens=SIZE, dtype=torch.float32, device=torch.device("cpu"))
        return None if mask is None else [(row[0] == 0).nonzero().flatten().tolist() for row in mask[0]]

    assert seen(TEXTS) == [list(range(9)), [0, 1]]
    assert seen(TEXTS, 2) == [[3, 4], [0, 1]]  # of a copy that begins with the text's second block
    assert seen(TEXTS[:1]) is None
