"""A finished run as its callbacks leave it."""

import json

import pytest

from lmtrain.tracking.run_log import RunLog
from tests.points import append_point


@pytest.fixture
def folder(tmp_path):
    """Return a run in numbers that are easy to check."""
    run = tmp_path / "runs" / "cat"
    (run / "attempts" / "1").mkdir(parents=True)
    write(run / "run.json", {"name": "cat"})
    write(run / "status.json", {"status": "FINISHED", "mlflow_run_id": "4f2a"})
    write(run / "plan.json", {"batch": {"context_tokens": 256}, "horizon": {"limited_by": "tokens", "tokens": 3000}})
    references = {"validation": {"text_bytes": 5000, "gzip_bits_per_byte": 1.93, "xz_bits_per_byte": 1.586}}
    write(run / "dataset.json", {"splits": {"validation": {"text_bytes": 5000}}, "references": references})
    overrides = ["optimizer.lr=0.02", "run.name=cat", "resume=never"]
    write(run / "attempts" / "1" / "job.json", {"overrides": overrides, "config": {"optimizer": {"lr": 0.02}}})
    for step, score in ((100, 1.5), (200, 1.4), (300, 1.45)):
        checkpoint = run / "checkpoints" / f"step_{step:08d}"
        checkpoint.mkdir(parents=True)
        facts = {"step": step, "tokens": 10 * step, "identity": {}, "metrics": {"validation/bits_per_byte": score}}
        write(checkpoint / "manifest.json", facts | {"files": {}})
    log = RunLog(run)
    append_point(log, 0, 0, {"validation/bits_per_byte": 8.03, "validation/num_bytes": 4999})
    append_point(log, 100, 1000, {"speed/tokens_per_second": 100.0, "speed/timed_seconds": 10.0, "cost/usd": 0.5})
    append_point(log, 300, 3000, {"speed/tokens_per_second": 400.0, "speed/timed_seconds": 5.0, "cost/usd": 1.5})
    append_point(log, 300, 3000, {"validation/bits_per_byte": 1.45, "validation/num_bytes": 4999})
    return run


def write(path, content):
    path.write_text(json.dumps(content))
