from pathlib import Path

from lmtrain.tracking.following import SentPoints
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


def test_the_score_of_an_older_checkpoint_is_sent_once(tmp_path: Path) -> None:
    log = [Point(float(n), step, 0, {"validation/loss": 1.0}) for n, step in enumerate((2, 4, 6, 3))]
    for first, sent_steps in ((0, [2, 4, 6, 3]), (0, []), (4, [])):
        sent = SentPoints(tmp_path / "state.json", store="a")
        assert [point.step for point in log[first:] if sent.take_missing(point)] == sent_steps
        sent.keep()
    sent = SentPoints(tmp_path / "state.json", store="a")
    again = [*log, Point(9.0, 5, 0, {"validation/loss": 0.9})]
    assert [point.step for point in again if sent.take_missing(point)] == [5]
