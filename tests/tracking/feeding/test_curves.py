from lmtrain.tracking.following import CurvePoint, curve_points
from lmtrain.tracking.run_log import Point


def test_the_main_curves_come_over_tokens_too():
    point = Point(5.0, 3, 300, {"train/loss": 2.0, "train/lr": 0.1})
    assert list(curve_points(point)) == [
        CurvePoint("train/loss", 2.0, 3, 5.0),
        CurvePoint("by_tokens/train/loss", 2.0, 300, 5.0),
        CurvePoint("train/lr", 0.1, 3, 5.0),
    ]
