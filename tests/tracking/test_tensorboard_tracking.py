import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmtrain.tracking.trackers import TensorboardTracking
from tests.tracking.followed_runs import follow_attempt


def test_tensorboard_reads_each_point_of_a_resumed_run_once(tmp_path):
    assert follow_attempt(TensorboardTracking(), tmp_path / "a", {1: 9.0, 2: 8.0, 3: 7.0}).is_complete
    assert follow_attempt(TensorboardTracking(), tmp_path / "a", {2: 8.5, 3: 7.5}, resumed_from=1).is_complete
    events = EventAccumulator(str(tmp_path / "a/tensorboard"))
    events.Reload()
    keys = events.scalars.Keys()
    assert {key: [(point.step, point.value) for point in events.Scalars(key)] for key in keys} == {
        "train/loss": [(1, 9.0), (2, 8.5), (3, 7.5)],
        "by_tokens/train/loss": [(100, 9.0), (200, 8.5), (300, 7.5)],
        "validation/bits_per_byte": [(2, 4.25)],
        "by_tokens/validation/bits_per_byte": [(200, 4.25)],
    }
    assert events.Scalars("train/loss")[0].wall_time == pytest.approx(1001.0)
