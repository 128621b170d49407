from collections.abc import Callable

import pytest

from lmtrain.run.execution.run import execute
from lmtrain.run.planning.cold_start import remember_start
from lmtrain.run.planning.machine_limits import batch_of
from lmtrain.run.planning.plan import planned_runs
from lmtrain.run.stored_runs.job import Job

MakeJob = Callable[..., Job]


def test_a_plan_has_what_starts_of_the_same_graphs_took(tiny_job: MakeJob) -> None:
    job = tiny_job("compile=blocks")
    assert planned(job)["start"] is None
    for setup, compilation in [(0.0, 60.0), (8.0, 2.0), (9.0, 3.0)]:  # the first one prepared data
        remember_start(job.config, batch_of(job.config), setup_seconds=setup, compile_seconds=compilation)
    assert planned(job)["start"] == {"first_seconds": 69.0, "later_seconds": 12.0, "is_same": True}
    (run,) = planned_runs([*job.overrides, "cluster.usd_per_gpu_hour=40"])
    assert run.headline.endswith("a first start takes 1min09s ($0.767), a later one 12s")
    others = {"first_seconds": 69.0, "later_seconds": None, "is_same": False}
    assert planned(tiny_job("compile=blocks", "model.num_layers=3"))["start"] == others


@pytest.mark.usefixtures("process_is_left_as_found")
def test_a_run_keeps_its_start_where_its_plan_looks(tiny_job: MakeJob) -> None:
    assert execute(tiny_job(name="first")) == 0
    job = tiny_job(name="second")
    assert execute(job) == 0
    start = planned(job)["start"]
    assert start["is_same"]
    assert start["first_seconds"] == start["later_seconds"] > 0, "set-up, which these have alone"


def planned(job: Job) -> dict:
    (run,) = planned_runs(job.overrides)
    return run.to_json()
