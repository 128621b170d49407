from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, RunLog, read_points
from lmtrain.tracking.scores import keep_scores, scores_file, scores_since


def test_scores_join_those_of_their_step_and_the_run_s_curves(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    log = RunLog(run.path)
    log.extend([Point(1.0, 7, 70, {"train/loss": 2.0})])
    log.close()
    assert (
        keep_scores(run.path, step=5, tokens=50, scores={"core/mean": {"score": 0.25, "standard_error": 0.1}}) is None
    )
    began = scores_since(run.path, 0)["core/mean"]["scored_at"] + 1e-6
    keep_scores(run.path, step=5, tokens=50, scores={"core/copa": {"score": -0.5}})
    assert set(scores_since(run.path, began)) == {"core/copa"}, "another command's score is not this one's"
    assert set(read_json(scores_file(run.path, 5))) == {"core/mean", "core/copa"}
    first, second, _ = read_points(run.path / "metrics.jsonl")
    assert (first.step, second.step, second.tokens, second.metrics) == (7, 5, 50, {"core/mean": 0.25})
