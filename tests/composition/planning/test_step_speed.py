import pytest

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from lmtrain.accounting.training_plan.communication import CommunicationVolume
from lmtrain.composition.planning.step_speed import step_speed

SHAPE = ModelShape(1000, 100, 900, 1000, (AttentionShape(num_heads=2, head_width=5),) * 3)
BATCH = BatchPlan(context_tokens=10, micro_batch_sequences=1, accumulation_micro_steps=1, num_ranks=1)
NOTHING_SENT = CommunicationVolume(gathered_bytes=0, reduced_bytes=0, bytes_per_second=None)


@pytest.mark.parametrize(("name", "share"), [("none", 0.0), ("every_block", 1.0), ("selective", 0.0)])
def test_a_step_takes_the_forward_flops_of_its_blocks_again(name, share):
    config = {
        "recompute": {"_target_": f"lmtrain.parallel.activation_checkpoint.{name}"},
        "cluster": {"device": "a device"},
    }
    speed = step_speed(
        config,
        SHAPE,
        batch=BATCH,
        cluster=Cluster(name="a"),
        peak=Peak(1e6, "a test"),
        sent=NOTHING_SENT,
        num_block_parameters=800,
        documents=None,
        allowed=[],
    )
    model, again = 6 * 900 + 3 * 12 * 10 * 10, 2 * 800 + 3 * 4 * 10 * 10
    assert speed is not None
    assert speed.step_seconds == pytest.approx(10 * (model + share * again) / (0.4 * 1e6))
    assert speed.mfu_palm == pytest.approx(0.4 * model / (model + share * again))
