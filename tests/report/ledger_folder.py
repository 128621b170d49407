"""A run's folder with accounts: two attempts, the second continuing from step 10 of the first's 20."""

import json

from lmtrain.tracking.stopwatch import KINDS

PLAN = {
    "batch": {"tokens_per_step": 1000, "num_ranks": 2},
    "horizon": {"steps": 40},
    "flops_per_token": {"palm": 6e6, "causal": 5e6},
    "peak": {"flops": 1e9, "source": "a test"},
    "cost": {"usd_per_gpu_hour": 36.0},
    "time": {"step_seconds": 1.0, "mfu_palm": 0.4, "source": "assumed"},
}


def row(step, *, start, **seconds):
    return {"name": "ledger", "start": start, "step": step, **dict.fromkeys(KINDS, 0.0), **seconds}


ROWS = [
    {"name": "attempt", "start": 1003.0, "attempt": 1, "started_at": 1000.0},
    row(0, start=1005.0, setup=5.0),
    row(10, start=1026.0, setup=5.0, compute=20.0, data_wait=1.0),
    {"name": "checkpoint", "start": 1026.0, "seconds": 2.0, "step": 10},
    row(20, start=1049.0, setup=5.0, compute=40.0, data_wait=2.0, checkpoint=2.0),
    {"name": "attempt", "start": 1063.0, "attempt": 2, "started_at": 1060.0},
    row(10, start=1064.0, setup=4.0),
    row(20, start=1084.0, setup=4.0, compute=20.0),
]


# Of a run that left another one at step 20, and did 20 steps of its own.
FORK_ROWS = [ROWS[0], row(20, start=1005.0, setup=5.0), row(40, start=1045.0, setup=5.0, compute=40.0)]


def write_fork(folder):
    """Write the accounts of a fork; its other run is runs/dog, wherever that is."""
    write(folder, rows=FORK_ROWS)
    noted = {"checkpoint": "runs/dog/checkpoints/step_00000020", "step": 20}
    (folder / "fork.json").write_text(json.dumps(noted))
    return folder


def write(folder, *, rows=ROWS, status="RUNNING", plan=PLAN):
    (folder / "events").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(one) for one in rows]
    (folder / "events/rank0.jsonl").write_text("\n".join([*lines, '{"name": "torn']))
    (folder / "status.json").write_text(json.dumps({"status": status}))
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder
