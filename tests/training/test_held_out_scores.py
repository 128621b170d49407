from lmtrain.training.checkpointing.checkpoints import HeldOutScores


def test_a_new_attempt_has_no_scores_and_each_has_its_own():
    first, second = HeldOutScores(), HeldOutScores()
    first.metrics["validation/loss"] = 1.0
    assert (second.step, second.metrics) == (None, {})


def test_a_best_score_is_told_once_and_only_where_somebody_keeps_it():
    scores = HeldOutScores(step=3, metrics={"validation/bits_per_byte": 2.0}, num_bytes=10)
    assert not scores.is_new_best(3)
    scores.keeps_best = True
    assert [scores.is_new_best(step) for step in (2, 3, 3)] == [False, True, False]
    scores.step, scores.metrics = 4, {"validation/bits_per_byte": 2.5}
    assert not scores.is_new_best(4)
    scores.num_bytes = 20
    assert scores.is_new_best(4), "on other bytes, no score before compares"
    averaged = HeldOutScores(step=5, metrics={"validation/loss": 1.0}, keeps_best=True, metric="validation/loss")
    assert averaged.is_new_best(5)
