import pytest

from lmtrain.models.llama import Llama
from lmtrain.parallel import activation_checkpoint
from lmtrain.parallel.facts import activation_checkpoint as facts


@pytest.mark.parametrize("name", ["none", "every_block", "selective"])
def test_an_option_without_settings_computes_no_block_twice_or_every_one(name: str) -> None:
    assert getattr(facts, name)() == (1.0 if name == "every_block" else 0.0)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75])
def test_a_budget_computes_the_blocks_again_that_keep_nothing(fraction: float) -> None:
    model = Llama(width=8, num_layers=8, num_heads=1, feed_forward_width=8, vocab_size=16, max_context_tokens=8)
    before = [block.forward.__name__ for block in model.blocks]
    activation_checkpoint.memory_budget(model, fraction=fraction)
    changed = sum(block.forward.__name__ != name for block, name in zip(model.blocks, before, strict=True))
    assert changed / 8 == facts.memory_budget(fraction=fraction)
