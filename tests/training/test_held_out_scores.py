from lmtrain.training.held_out_scores import HeldOutScores


def test_a_new_attempt_has_no_scores_and_each_has_its_own():
    first, second = HeldOutScores(), HeldOutScores()
    first.metrics["validation/loss"] = 1.0
    assert (second.step, second.metrics) == (None, {})
