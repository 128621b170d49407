import shutil

import pytest

from lmtrain.tracking import atomic_files
from lmtrain.tracking.run_log import RunLog
from tests.points import append_point
from tests.tracking.sent_runs import client_of, history, send, stored

pytestmark = pytest.mark.slow  # MLflow takes 3 seconds and more to import


def test_checkpoints_are_models_ranked_by_their_score(run):
    log = RunLog(run.path)
    for step, score in ((1, 3.0), (2, 1.0), (3, 2.0)):
        append_point(log, step, step * 10, {"validation/bits_per_byte": score})
        manifest = {"step": step, "tokens": step * 10, "metrics": {"validation/bits_per_byte": score}}
        (run.path / f"checkpoints/step_{step:08d}").mkdir(parents=True)
        atomic_files.write_json(run.path / f"checkpoints/step_{step:08d}/manifest.json", manifest)
    assert send(run)
    assert [model.name for model in ranked(run)] == ["step_00000002", "step_00000003", "step_00000001"]
    assert ranked(run)[0].tags["lmtrain.checkpoint"] == str(run.path / "checkpoints/step_00000002")
    assert ranked(run)[0].params == {"step": "2", "tokens": "20"}
    assert history(run, "validation/bits_per_byte") == [(1, 3.0), (2, 1.0), (3, 2.0)], "none twice"
    shutil.rmtree(run.path / "checkpoints/step_00000001")
    assert send(run)
    assert [model.name for model in ranked(run)] == ["step_00000002", "step_00000003"]


def ranked(run):
    client, found = client_of(run), stored(run)
    order = [{"field_name": "metrics.validation/bits_per_byte", "ascending": True}]
    return client.search_logged_models([found.info.experiment_id], order_by=order)
