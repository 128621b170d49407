"""A strategy trains by the facts that plans read of it, or does not start."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.run.builders.strategy import build_strategy
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from tests.configs import config_with

FACTS = {"num_ranks": 2, "compute_dtype": torch.float32}
MADE_OF_ANOTHER = """
from dataclasses import replace

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.parallel.fsdp import fsdp


def silent(*, num_ranks, compute_dtype):
    return replace(fsdp(num_ranks=num_ranks, compute_dtype=compute_dtype), name="silent")


def silent_facts():
    return ModelSpread(shards_over="all ranks")


def honest(*, num_ranks, compute_dtype):
    return replace(fsdp(num_ranks=num_ranks, compute_dtype=compute_dtype), spread=honest_facts())


def honest_facts():
    return ModelSpread(shards_over="all ranks", casts_parameters=True, reshard_after_forward=False)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package of strategies made of another one."""
    (tmp_path / "strategies_of_mine").mkdir()
    (tmp_path / "strategies_of_mine" / "shards.py").write_text(MADE_OF_ANOTHER)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "strategies_of_mine."
    for name in [name for name in sys.modules if name.startswith("strategies_of_mine")]:
        del sys.modules[name]


def config_of(target: str, *allowed: str) -> RunConfig:
    return replace(config_with(strategy=Node("strategy", {"_target_": target})), allowed=allowed)


@pytest.mark.parametrize("target", ["replicate.auto", "replicate.ddp", "fsdp.fsdp"])
def test_ours_train_by_the_facts_that_plans_read(target: str) -> None:
    assert build_strategy(config_of(f"lmtrain.parallel.{target}"), facts=FACTS).spread.most_ranks is None


def test_a_strategy_made_of_another_brings_its_own_facts_or_is_refused(package: str) -> None:
    honest = build_strategy(config_of(f"{package}shards.honest", package), facts=FACTS)
    assert honest.spread.reshard_after_forward is False
    refused = (
        "strategy=silent trains with casts_parameters=True and is planned with casts_parameters=False; "
        r"give its Parallelism spread=silent_facts\(\), with the same settings."
    )
    with pytest.raises(ConfigurationError, match=refused):
        build_strategy(config_of(f"{package}shards.silent", package), facts=FACTS)
