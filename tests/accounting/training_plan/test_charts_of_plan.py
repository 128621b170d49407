import pytest

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import Budget, horizon
from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.charts_of_plan import charts, days_by_devices
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.accounting.training_plan.setting import Setting, memory_of
from lmtrain.accounting.training_plan.speed import Speed
from tests import facts
from tests.accounting.model.test_model_facts import FACTS

STATES = {name: facts.optimizer(name).state for name in ("muon", "adamw", "sgd")}
BATCH = BatchPlan(context_tokens=256, sequences_per_micro_step=2, accumulation_micro_steps=1, num_ranks=4)
FLOPS = flops_per_token(FACTS.shape, 256)
HORIZON = horizon(Budget(steps=1000), tokens_per_step=2048, num_active_parameters=1000, flops_per_token=FLOPS.palm)
SPEED = Speed(step_seconds=86.4, mfu_palm=0.4, source="cluster.mfu")
PLAN = Plan(shape=FACTS.shape, batch=BATCH, horizon=HORIZON, flops_per_token=FLOPS, speed=SPEED)
SETTING = Setting(
    cluster=Cluster(name="x"),
    num_ranks=4,
    spread=ModelSpread(),
    precision=facts.precision("fp32"),
    state=STATES["adamw"],
    known_facts=FACTS,
)


def test_twice_the_devices_take_half_the_days():
    days = {row["num_devices"]: row["days"] for row in days_by_devices(PLAN)}
    assert days == pytest.approx({1: 4.0, 2: 2.0, 4: 1.0, 8: 0.5, 16: 0.25})


def test_the_chosen_optimizer_has_the_bytes_of_the_plan_s_memory():
    bars = charts(PLAN, SETTING, STATES)["optimizers"]
    found = {row["name"]: row["bytes"] for row in bars}
    assert found["adamw"] == memory_of(SETTING, BATCH).optimizer
    assert found.keys() == STATES.keys()
    assert [row["bytes"] for row in bars] == sorted(found.values())
