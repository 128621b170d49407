from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, RunLog, logged_points, read_points
from lmtrain.tracking.scores import all_scores, keep_scores, scores_file, scores_since


def test_scores_join_those_of_their_step_and_the_run_s_curves(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    log = RunLog(run.path)
    log.extend([Point(1.0, 7, 70, {"train/loss": 2.0})])
    log.close()
    kept = keep_scores(run.path, step=5, tokens=50, scores={"core/mean": {"score": 0.25, "standard_error": 0.1}})
    assert (kept.names, kept.problem) == ({}, None)
    began = scores_since(run.path, 0)["core/mean"]["scored_at"] + 1e-6
    keep_scores(run.path, step=5, tokens=50, scores={"core/copa": {"score": -0.5}})
    assert set(scores_since(run.path, began)) == {"core/copa"}, "another command's score is not this one's"
    assert set(read_json(scores_file(run.path, 5))) == {"core/mean", "core/copa"}
    first, second, _ = read_points(run.path / "metrics.jsonl")
    assert (first.step, second.step, second.tokens, second.metrics) == (7, 5, 50, {"core/mean": 0.25})


def test_a_score_of_another_text_or_setting_does_not_replace_one_of_its_name(tmp_path):
    def keep(score, **of_what):
        kept = keep_scores(tmp_path, step=5, tokens=50, scores={"evaluation/x": {"score": score, **of_what}})
        return kept.names.get("evaluation/x", "evaluation/x")

    first, short = {"sha256": "aa", "context_tokens": 256}, {"sha256": "aa", "context_tokens": 32}
    names = ["evaluation/x", "evaluation/x_2", "evaluation/x_3", "evaluation/x", "evaluation/x_2"]
    asked = [first, short, {"sha256": "bb", "context_tokens": 256}, first, short]
    assert [keep(number / 8, **one) for number, one in enumerate(asked)] == names
    file = all_scores(tmp_path)[5]
    assert {name: one["score"] for name, one in file.items()} == dict(zip(names[:3], [0.375, 0.5, 0.25], strict=True))


def test_a_score_of_another_text_at_another_step_joins_no_curve_of_its_name(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    of = {"a": {"score": 1.0, "sha256": "a"}, "b": {"score": 2.0, "sha256": "b"}}
    kept = [keep_scores(run, step=step, tokens=step, scores={"evaluation/x": of[text]}).names
            for step, text in ((10, "a"), (20, "b"), (30, "a"), (10, "b"))]  # fmt: skip
    assert kept == [{}, {"evaluation/x": "evaluation/x_2"}, {}, {"evaluation/x": "evaluation/x_2"}]
    curves = [(point.step, *point.metrics) for point in logged_points(run)]
    assert curves == [(10, "evaluation/x"), (20, "evaluation/x_2"), (30, "evaluation/x"), (10, "evaluation/x_2")]
