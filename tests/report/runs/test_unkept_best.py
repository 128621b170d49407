from dataclasses import replace
from pathlib import Path

from lmtrain.report.runs.unkept_best import unkept_best
from lmtrain.tracking.run_log import Point
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts

LAST = CheckpointFacts(
    path=Path("step_00000071"), step=71, tokens=710, identity={}, metrics={"validation/bits_per_byte": 1.949}
)


def scored(step, score, *, num_bytes=4999):
    metrics = {"validation/bits_per_byte": score, "validation/num_bytes": num_bytes}
    return Point(time=0.0, step=step, tokens=10 * step, metrics=metrics)


OVERFIT = [scored(0, 8.0), scored(18, 2.1), scored(36, 1.784), scored(54, 1.8), scored(71, 1.949)]


def test_a_validation_better_than_at_all_checkpoints_is_told_with_the_interval_that_keeps_it():
    told = "1.784 at step 36, not kept: callbacks.checkpoint.every_steps=18 keeps more"
    assert str(unkept_best(OVERFIT, [LAST], {})) == told
    not_asked = {"callbacks": {"checkpoint": {"keep_best": False}}}
    assert "every_steps=18 callbacks.checkpoint.keep_best=true keeps" in str(unkept_best(OVERFIT, [LAST], not_asked))


def test_the_best_is_not_missed_where_it_is_kept_or_not_comparable():
    best = replace(LAST, step=36, metrics={"validation/bits_per_byte": 1.784})
    assert unkept_best(OVERFIT, [best, LAST], {}) is None
    assert unkept_best(OVERFIT, [replace(best, metrics={}), LAST], {}) is None, "written before its score"
    assert unkept_best([scored(36, 1.1, num_bytes=10), *OVERFIT[3:]], [replace(LAST, step=54), LAST], {}) is None
    assert unkept_best([scored(0, 1.0), *OVERFIT[4:]], [LAST], {}) is None, "before training nothing is to be kept"
    assert unkept_best([], [], {}) is None
