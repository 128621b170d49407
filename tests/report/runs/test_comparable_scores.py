from lmtrain.report.runs.comparable_scores import comparable, left_out_words
from lmtrain.tracking.run_log import Point


def points(*read):
    scored = [{"validation/bits_per_byte": 1.0, "validation/num_bytes": each, "train/loss": 2.0} for each in read]
    return [Point(0.0, step, step, metrics) for step, metrics in enumerate(scored)]


def test_scores_of_other_bytes_than_the_newest_go_and_all_else_stays():
    kept = comparable(points(10, 20, 20))
    assert [sorted(point.metrics) for point in kept[:2]] == [
        ["train/loss"],
        ["train/loss", "validation/bits_per_byte", "validation/num_bytes"],
    ]
    assert left_out_words(points(10, 20, 20)) == (
        "Left out, as they do not compare: scores of other held-out text, 1 of 10 bytes."
    )


def test_scores_of_one_text_all_stay():
    assert comparable(points(10, 10)) == points(10, 10)
    assert left_out_words(points(10, 10)) is None
    assert left_out_words([]) is None
