from pathlib import Path

from lmtrain.tracking.feeding.sent_points import SentPoints
from lmtrain.tracking.run_log import Point


def test_a_later_attempt_lacks_each_curve_from_its_own_highest_step_on_and_another_store_lacks_all(
    tmp_path: Path,
) -> None:
    sent = SentPoints(tmp_path / "state.json", store="a")
    assert sent.take_missing(Point(0.0, 2, 0, {"loss": 1.0, "lr": 2.0})) == {"loss": 1.0, "lr": 2.0}
    assert sent.take_missing(Point(0.0, 3, 0, {"loss": 0.5})) == {"loss": 0.5}
    sent.keep()
    again = Point(0.0, 3, 0, {"loss": 0.5, "lr": 2.5})
    assert SentPoints(tmp_path / "state.json", store="a").take_missing(again) == {"lr": 2.5}
    assert SentPoints(tmp_path / "state.json", store="b").take_missing(again) == {"loss": 0.5, "lr": 2.5}
