"""A mixture of experts trains alike on one rank and sharded over two, whatever the micro-batches.

Without the load-balance loss, which each micro-batch takes of its own tokens, as everywhere: it is no sum over tokens.
fp32 sums are taken in another order, so equality is to 2e-6 relative, as in test_strategies.py.
"""

from pathlib import Path

import pytest

from tests import forked, tiny

WORDS = [
    *("model=mixtral_tiny", "model.width=32", "model.num_layers=2", "model.feed_forward_width=48"),
    *("model.experts.num_experts=5", "model.experts.load_balance_weight=0", "tokenizer=byte_level", "data=synthetic"),
    *("data.folder.num_tokens=60000", *tiny.BATCH, *tiny.QUIET, "optimizer=adamw", "budget.steps=4"),
    *("run.log_every_steps=1", "gradient_clip_norm=0.5"),
]


def losses(folder: Path, *words: str, num_ranks: int = 1) -> list[float]:
    script, words = tiny.PROJECT / "train.py", (*WORDS, "run.name=a", *words)
    finished = forked.run(script, words, folder=folder, environment=tiny.environment(), num_ranks=num_ranks)
    assert finished.returncode == 0, finished.stderr
    return list(tiny.losses(folder / "runs/a").values())


@pytest.mark.distributed
@pytest.mark.slow
def test_one_rank_and_two_sharded_ranks_with_accumulation_have_the_same_losses(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = losses(tmp_path / "one")
    sharded = ("strategy=fsdp", "trainer.devices=2", "trainer.accelerator=cpu", "batch.micro_batch_sequences=2")
    assert losses(tmp_path / "two", *sharded, num_ranks=2) == pytest.approx(one, rel=2e-6)
    assert one[-1] < one[0]
