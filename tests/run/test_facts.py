import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.paths import conf_folder
from lmtrain.run.planning.plan import PlannedRun, planned_runs
from lmtrain.run.schema.facts import require_facts
from lmtrain.run.schema.signatures import setting_names
from lmtrain.run.stored_runs.job import MOVED_TARGETS

SAYING = {"strategy": ModelSpread, "optimizer": OptimizerFacts, "precision": PrecisionFacts}
LLAMA = ["model=llama_3_8b", "cluster=h100_8x", "cluster.num_nodes=2", "precision=bf16_mixed", "budget.tokens=1B"]
BATCH = ["batch.context_tokens=8192", "batch.tokens_per_step=131072", "batch.micro_batch_sequences=1"]
STRATEGY = """
import no_such_package
from lmtrain.accounting.options.strategy import ModelSpread

def hsdp(**settings):
    no_such_package.run()

def hsdp_facts():
    return ModelSpread(shards_over=8, casts_parameters=True)
"""


def planned(*words: str) -> PlannedRun:
    return planned_runs([*LLAMA, *BATCH, *words])[0]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with a strategy that is described, and one that is not; neither can be imported."""
    folder = tmp_path / "toy_strategies"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "hybrid.py").write_text(STRATEGY)
    monkeypatch.syspath_prepend(tmp_path)
    yield "toy_strategies."
    for name in [name for name in sys.modules if name.startswith("toy_strategies")]:
        del sys.modules[name]


@pytest.mark.parametrize("group", SAYING)
def test_every_option_that_a_plan_counts_on_says_it(group: str) -> None:
    texts = [path.read_text() for path in (conf_folder() / group).glob("*.yaml")]
    targets = [found.group(1) for text in texts if (found := re.search(r"_target_: (\w\S+)", text))]
    assert len(targets) >= 4
    for target in targets:
        assert require_facts({"_target_": target}, SAYING[group], has_bf16=True)


def test_a_strategy_that_says_nothing_is_refused_and_one_from_elsewhere_is_not_read(elsewhere: str) -> None:
    for target, said in (
        ("lmtrain.parallel.toy.toy", "does not say what it shards and sends"),
        ("lmtrain.parallel.mesh.toy", "does not say what it shards and sends"),
        ("toy_strategies.hybrid.hsdp", "is not allowed: a target here starts with lmtrain.parallel."),
        ("toy", "is not allowed"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            require_facts({"_target_": target}, ModelSpread)
    assert "toy_strategies" not in sys.modules
    node = {"_target_": "toy_strategies.hybrid.hsdp"}
    assert require_facts(node, ModelSpread, allowed=[elsewhere]).shards_over == 8
    assert "toy_strategies.hybrid" not in sys.modules


def test_weights_kept_after_the_forward_pass_are_gathered_half_as_often() -> None:
    plans = [planned("strategy=fsdp", f"strategy.reshard_after_forward={value}").plan for value in ("true", "false")]
    freed, kept = (plan.communication for plan in plans)
    assert freed is not None
    assert kept is not None
    (of_freed,), (of_kept,) = freed.groups, kept.groups
    assert (of_kept.gathered_bytes, of_kept.reduced_bytes) == (of_freed.gathered_bytes / 2, of_freed.reduced_bytes)
    memory = [plan.memory for plan in plans]
    assert memory[0] is not None
    assert memory[1] is not None
    assert memory[1].gathered == sum(plans[1].components.values()) * 2 > 2 * memory[0].gathered


def test_shards_within_a_node_are_planned_from_what_the_strategy_says(elsewhere: str) -> None:
    target = ["--allow-target", elsewhere, "strategy._target_=toy_strategies.hybrid.hsdp"]
    hybrid, whole = planned("strategy=fsdp", *target), planned("strategy=fsdp")
    assert hybrid.plan.memory is not None
    assert whole.plan.memory is not None
    assert hybrid.plan.memory.weights == 2 * whole.plan.memory.weights
    assert hybrid.plan.memory.optimizer == 2 * whole.plan.memory.optimizer
    assert hybrid.plan.communication is not None
    shard = 4 * hybrid.plan.shape.num_parameters / 8
    reduced = sum(group.reduced_bytes for group in hybrid.plan.communication.groups)
    assert reduced == pytest.approx(7 * shard + shard)


@pytest.mark.parametrize("name", ["adafactor", "adagrad", "adamw_8bit", "lion", "rmsprop", "schedule_free", "sgd"])
def test_an_optimizer_of_an_older_run_is_found_in_its_present_module(name: str) -> None:
    assert "lr" in setting_names(f"{MOVED_TARGETS[f'lmtrain.optim.{name}.']}{name}")
