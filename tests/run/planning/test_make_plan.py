"""One plan from two sides: what is known on paper, and what a run finds on its devices."""

from dataclasses import replace

import pytest

from lmtrain.accounting.batches import plan_batches
from lmtrain.accounting.cluster import Peak
from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from lmtrain.run.planning.make_plan import PlanFacts, make_plan
from lmtrain.run.planning.setting import planned_setting
from tests.configs import config_of
from tests.planned import PLAN

PEAK = Peak(flops=1e12, source="a test")


def facts(config, **changes):
    plain = PlanFacts(
        setting=planned_setting(config),
        shape=PLAN.shape,
        batch=plan_batches(config.batch),
        parameters=TrainedParameters(
            num_total=1000, num_hidden_matrix=800, num_largest_block=400, num_outside_blocks=200
        ),
        bytes_of=PrecisionBytes(weights=4, compute_copy=2, gradients=4, state=4, activations=2, matmul="bf16"),
        train_tokens=1_000_000,
        epoch_tokens=1_000_000,
        held_out=[4096],
        peak=PEAK,
        peak_source="not known",
        is_compiled=True,
        trusts_assumed_speed=True,
    )
    return replace(plain, **changes)


def test_validation_and_epochs_are_of_the_data():
    config = config_of("budget=epochs", "budget.epochs=2")
    plan = make_plan(config, facts(config))
    assert plan.horizon.tokens == pytest.approx(2_000_000, abs=2048)
    assert plan.evaluation is not None
    assert plan.evaluation.tokens_per_pass == 4096


SHAPE = ModelShape(1000, 100, 900, 1000, (AttentionShape(num_heads=2, head_width=5),) * 3)


@pytest.mark.parametrize(("name", "share"), [("none", 0.0), ("every_block", 1.0), ("selective", 0.0)])
def test_a_step_takes_the_forward_flops_of_its_blocks_again(name, share):
    config = config_of(f"recompute={name}", "batch.context_tokens=10", "batch.tokens_per_step=10", "cluster.mfu=null")
    speed = make_plan(config, facts(config, shape=SHAPE)).speed
    model, again = 6 * 900 + 3 * 12 * 10 * 10, 2 * 800 + 3 * 4 * 10 * 10
    assert speed is not None
    assert speed.step_seconds == pytest.approx(10 * (model + share * again) / (0.4 * PEAK.flops))
    assert speed.mfu_palm == pytest.approx(0.4 * model / (model + share * again))
