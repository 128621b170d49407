import pytest

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.budgets import Budget, horizon
from lmtrain.accounting.depth_scaling import depth_scaling
from lmtrain.accounting.flops import flops_per_token
from lmtrain.accounting.model_shape import AttentionShape, ModelShape
from lmtrain.accounting.plan import Plan
from lmtrain.composition.compose import compose_config
from lmtrain.composition.dial_rules import dial_rules

SHAPE = ModelShape(286_261_730, 0, 110_100_912, 286_261_730, (AttentionShape(6, 128),) * 12)
BATCH = plan_batches(Batch(context_tokens=2048, tokens_per_step=2**19))
FLOPS = flops_per_token(SHAPE, 2048)
PLAN = Plan(
    shape=SHAPE,
    batch=BATCH,
    horizon=horizon(
        Budget(tokens=8 * 110_100_912),
        tokens_per_step=2**19,
        num_parameters=286_261_730,
        flops_per_token=FLOPS.palm,
    ),
    flops_per_token=FLOPS,
)


def test_at_the_reference_depth_every_factor_is_one():
    rules = dial_rules(compose_config(["model=nano"]), PLAN)
    assert rules is not None
    assert rules.tokens_per_step == 2**19
    assert (rules.lr_factor, rules.width_lr_factor) == (1.0, 1.0)
    assert rules.weight_decay_factor == pytest.approx(1.0)
    ratio = PLAN.horizon.tokens / 110_100_912
    assert rules == depth_scaling(110_100_912, width=768, tokens_per_parameter=ratio)


def test_a_model_without_a_dial_has_no_rules():
    assert dial_rules(compose_config([]), PLAN) is None
