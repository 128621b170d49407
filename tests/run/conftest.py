import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import read_config
from lmtrain.run.stored_runs.job import Job

TINY = [
    "data=synthetic", "data.folder.num_tokens=4K", "tokenizer=byte_level", "model.width=16", "model.num_layers=2",
    "model.num_heads=1", "model.feed_forward_width=32", "model.num_bigram_buckets=8",
    "model.value_embedding_layers=[1]",
    "batch.context_tokens=16", "batch.tokens_per_step=64", "budget=steps", "budget.steps=3", "precision=fp32",
    "schedule=constant", "compile=none", "cluster.peak_flops=1e12", "logger=none", "run.log_every_steps=1",
    "trainer.accelerator=cpu", "callbacks=[step_log,token_budget,checkpoint]",
]  # fmt: skip


@pytest.fixture
def tiny_job(tmp_path: Path) -> Callable[..., Job]:
    """Compose and check a job that trains in a moment: tiny_job("seed=2", ...)."""

    def make(*overrides: str, name: str = "cat") -> Job:
        words = [*TINY, f"data.folder.root={tmp_path}/data", f"run.cache={tmp_path}/cache", *overrides]
        config = read_config(compose_config(words)).checked()
        return Job(config=config, overrides=words, name=name, root=str(tmp_path / "runs"))

    return make


@pytest.fixture
def process_is_left_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a run sets for its whole process: the level of Lightning's loggers, and where compilers keep files."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    levels = {name: logging.getLogger(name).level for name in names}
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
