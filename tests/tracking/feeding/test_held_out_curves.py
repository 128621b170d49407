from lmtrain.tracking.following import HeldOutCurves, curve_points, plain_name
from lmtrain.tracking.run_log import Point, RunLog


def scored(step, num_bytes):
    return Point(0.0, step, 10 * step, {"validation/bits_per_byte": 2.0, "validation/num_bytes": float(num_bytes)})


def test_scores_of_other_bytes_than_the_first_are_curves_of_their_own_also_from_the_middle_of_a_run(tmp_path):
    points = [Point(0.0, 0, 0, {"train/loss": 5.0}), scored(1, 900), scored(2, 400), scored(3, 900)]
    log = RunLog(tmp_path)
    log.extend(points)
    kept = HeldOutCurves(log.path).apart(points)
    assert [*kept[:2], kept[3]] == [*points[:2], points[3]]
    assert sorted(kept[2].metrics) == ["validation_of_400_bytes/bits_per_byte", "validation_of_400_bytes/num_bytes"]
    assert HeldOutCurves(log.path).apart(points[2:]) == kept[2:]
    assert [plain_name(name) for name in kept[2].metrics] == [*points[2].metrics]
    assert "by_tokens/validation_of_400_bytes/bits_per_byte" in {each.key for each in curve_points(kept[2])}


def test_a_run_whose_scores_do_not_tell_their_bytes_stays_as_it_is(tmp_path):
    points = [Point(0.0, 1, 1, {"validation/bits_per_byte": 2.0})]
    assert HeldOutCurves(tmp_path / "metrics.jsonl").apart(points) == points
