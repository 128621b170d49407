import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lmtrain.accounting.training_plan.spread import ModelSpread
from lmtrain.composition.nodes.facts import share_recomputed, spread_of
from lmtrain.composition.planning.plan import PlannedRun, planned_runs
from lmtrain.errors import ConfigurationError
from tests import tiny

OPTIONS = sorted((tiny.PROJECT / "conf/strategy").glob("*.yaml"))
LLAMA = ["model=llama_3_8b", "cluster=h100_8x", "cluster.num_nodes=2", "precision=bf16_mixed", "budget.tokens=1B"]
BATCH = ["batch.context_tokens=8192", "batch.tokens_per_step=131072", "batch.micro_batch_sequences=1"]
FACTS = """
from lmtrain.accounting.training_plan.spread import ModelSpread
def hsdp(**settings):
    return ModelSpread(shards_over="node", casts_parameters=True)
"""


def planned(*words: str) -> PlannedRun:
    return planned_runs([*LLAMA, *BATCH, *words], program="lmtrain plan")[0]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with a strategy that is described, and one that is not."""
    facts = tmp_path / "toy_strategies" / "facts"
    facts.mkdir(parents=True)
    for folder in (facts, facts.parent):
        (folder / "__init__.py").touch()
    (facts / "hybrid.py").write_text(FACTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "toy_strategies."
    for name in [name for name in sys.modules if name.startswith("toy_strategies")]:
        del sys.modules[name]


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: path.stem)
def test_every_strategy_says_what_it_shards(path: Path) -> None:
    node = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(node, dict)
    assert isinstance(spread_of(node), ModelSpread)  # pyright: ignore[reportArgumentType]


def test_a_strategy_that_says_nothing_is_refused_and_one_from_elsewhere_is_not_loaded(elsewhere: str) -> None:
    for target in ("lmtrain.parallel.toy.toy", "lmtrain.parallel.fsdp.toy", "toy_strategies.hybrid.hsdp"):
        with pytest.raises(ConfigurationError, match="does not say what it shards"):
            spread_of({"_target_": target})
    assert "toy_strategies" not in sys.modules
    assert spread_of({"_target_": "toy_strategies.hybrid.hsdp"}, allowed=[elsewhere]).shards_over == "node"


def test_weights_kept_after_the_forward_pass_are_gathered_half_as_often() -> None:
    freed, kept = (
        planned("strategy=fsdp", f"strategy.reshard_after_forward={value}").plan.communication
        for value in ("true", "false")
    )
    assert freed is not None
    assert kept is not None
    assert kept.gathered_bytes == freed.gathered_bytes / 2
    assert kept.reduced_bytes == freed.reduced_bytes


def test_shards_within_a_node_are_planned_from_what_the_strategy_says(elsewhere: str) -> None:
    target = ["--allow-target", elsewhere, "strategy._target_=toy_strategies.hybrid.hsdp"]
    hybrid, whole = planned("strategy=fsdp", *target), planned("strategy=fsdp")
    assert hybrid.plan.memory is not None
    assert whole.plan.memory is not None
    assert hybrid.plan.memory.weights == 2 * whole.plan.memory.weights
    assert hybrid.plan.memory.optimizer == 2 * whole.plan.memory.optimizer
    assert hybrid.plan.communication is not None
    shard = 4 * hybrid.plan.shape.num_parameters / 8
    assert hybrid.plan.communication.reduced_bytes == pytest.approx(7 * shard + shard)


RECOMPUTED = {"none": 0.0, "every_block": 1.0, "selective": 0.0, "memory_budget": 0.5}


def test_every_recomputation_says_what_it_computes_twice() -> None:
    for path in sorted((tiny.PROJECT / "conf/recompute").glob("*.yaml")):
        node: Any = OmegaConf.to_container(OmegaConf.load(path))
        assert share_recomputed(node) == RECOMPUTED[path.stem]


def test_a_plan_counts_the_forward_pass_of_the_blocks_twice() -> None:
    none, every = (planned("strategy=fsdp", f"recompute={name}").plan for name in ("none", "every_block"))
    assert none.speed is not None
    assert every.speed is not None
    head = 4096 * 128_256
    forward = 2 * (none.shape.num_matmul_parameters - head) + 4 * 32 * 4096 * 8192
    ratio = every.speed.step_seconds / none.speed.step_seconds
    assert ratio == pytest.approx(1 + forward / none.flops_per_token.palm, rel=1e-4)
    assert every.speed.mfu_palm == pytest.approx(0.4 / ratio)
    assert (none.speed.hfu_palm, every.speed.hfu_palm) == pytest.approx((0.4, 0.4))
