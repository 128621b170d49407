"""A small plan on four ranks, for tests of what is made from plans."""

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import Budget, horizon
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.accounting.training_plan.speed import Speed
from tests.accounting.model.test_model_facts import FACTS

FLOPS = flops_per_token(FACTS.shape, 256)
PLAN = Plan(
    shape=FACTS.shape,
    batch=BatchPlan(context_tokens=256, sequences_per_micro_step=2, accumulation_micro_steps=1, num_ranks=4),
    horizon=horizon(Budget(steps=1000), tokens_per_step=2048, num_active_parameters=1000, flops_per_token=FLOPS.palm),
    flops_per_token=FLOPS,
    speed=Speed(step_seconds=86.4, mfu_palm=0.4, source="cluster.mfu"),
)
