import pytest

from lmtrain.report.comparing.score_decimals import score_decimals


@pytest.mark.parametrize(
    ("scores", "decimals"),
    [([], 4), ([1.0, 1.0], 4), ([3.2104, 3.21], 4), ([1.00012, 1.00014], 5), ([1.0000011, 1.0000013, 1.0], 6)],
)
def test_different_scores_are_written_differently_up_to_six_decimals(scores: list[float], decimals: int) -> None:
    assert score_decimals(scores) == decimals
