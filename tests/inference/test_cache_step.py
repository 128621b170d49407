import pytest
import torch

from lmtrain.inference.blocks import BlockPool
from lmtrain.inference.cache_step import Piece, Step
from lmtrain.inference.kv_cache import KVCache
from tests.inference.cached import FAMILIES, VOCABULARY, build


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_of_pieces_are_those_of_the_whole_text(family):
    model = build(family)
    tokens = torch.randint(VOCABULARY, (1, 40), generator=torch.Generator().manual_seed(2))
    pool, cache, made, start = BlockPool(20, block_tokens=4), KVCache(block_tokens=4, device=torch.device("cpu")), [], 0
    table, other = pool.open([]), pool.open([])
    with torch.inference_mode():
        for length in (7, 1, 1, 5, 1, 10, 1, 14):
            pool.extend(table, start + length)
            pool.extend(other, len(other.blocks) * 4 + 1)  # blocks of one text do not lie end to end
            step = Step(cache, [Piece(table.blocks, start, length)], num_blocks=pool.num_touched)
            made.append(model.hidden_states(tokens[:, start : start + length], step))
            start += length
        # Sums in another order: fp32's last digits.
        torch.testing.assert_close(torch.cat(made, dim=1), model.hidden_states(tokens), atol=2e-5, rtol=1e-5)


def test_a_prompt_read_at_once_is_bit_for_bit_the_models_own():
    model = build("llama")
    tokens = torch.randint(VOCABULARY, (1, 21), generator=torch.Generator().manual_seed(2))
    cache = KVCache(block_tokens=4, device=torch.device("cpu"))
    with torch.inference_mode():
        step = Step(cache, [Piece(list(range(6)), 0, 21)], num_blocks=6)
        assert torch.equal(model.hidden_states(tokens, step), model.hidden_states(tokens))


def test_predecessors_come_from_the_block_before():
    cache = KVCache(block_tokens=2, device=torch.device("cpu"))

    def shift(values, *pieces):
        return Step(cache, pieces, num_blocks=8).previous(torch.tensor([values])).tolist()[0]

    assert shift([1, 2, 3, 10, 11], Piece([0, 1], 0, 3), Piece([4], 0, 2)) == [0, 1, 2, 0, 10]
    assert shift([12, 4, 5], Piece([4, 5], 2, 1), Piece([0, 1, 2], 3, 2)) == [11, 3, 4]


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_begun_together_are_as_each_by_itself(family):
    model = build(family)
    lengths = (9, 9, 9, 4, 11, 11)  # the equally long ones share an attention
    tokens = torch.randint(VOCABULARY, (1, sum(lengths)), generator=torch.Generator().manual_seed(3))
    cache = KVCache(block_tokens=4, device=torch.device("cpu"))
    pieces = [Piece(list(range(3 * index, 3 * index + 3)), 0, length) for index, length in enumerate(lengths)]
    with torch.inference_mode():
        together = model.hidden_states(tokens, Step(cache, pieces, num_blocks=18))
        apart = [model.hidden_states(each) for each in tokens.split(lengths, dim=1)]
        torch.testing.assert_close(together, torch.cat(apart, dim=1), atol=2e-5, rtol=1e-5)
