import json
import time
from pathlib import Path

import pytest

from lmtrain.callbacks.communication import Communication, exposed_share
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.errors import ConfigurationError
from lmtrain.training.profiling.activities import Activity
from tests.callbacks.test_two_ranks import train


def event(name, start, end, **facts):
    return Activity(name=name, span=(start, end), **facts)


def test_on_a_cpu_gloo_is_set_against_operators():
    events = [event("aten::mm", 0, 60), event("gloo:all_reduce", 50, 90, is_annotation=True), event("DDP", 0, 100)]
    assert exposed_share(events) == pytest.approx(0.3)


def test_on_a_gpu_nccl_is_set_against_kernels_and_not_against_annotations():
    gpu = {"is_on_gpu": True}
    events = [
        event("aten::mm", 0, 100),
        event("gemm", 0, 60, **gpu),
        event("ncclDevKernel_AllReduce", 50, 90, **gpu),
        event("Optimizer.step", 0, 100, is_annotation=True, **gpu),
    ]
    assert exposed_share(events) == pytest.approx(0.3)


def test_a_trace_of_nothing_waits_for_nothing():
    assert exposed_share([]) == 0


def test_an_interval_below_1_is_refused(make_run):
    with pytest.raises(ConfigurationError, match=r"callbacks\.communication\.every_steps=0 is below 1"):
        Communication(every_steps=0, context=make_run().context)


def test_a_single_rank_is_never_traced(make_run, monkeypatch):
    monkeypatch.setattr("lmtrain.callbacks.communication._start_trace", lambda _: pytest.fail("traced"))
    run = make_run(steps=4)
    run.fit(Communication(every_steps=1, context=run.context), TokenBudget(context=run.context))
    assert run.context.events.stopwatch.seconds()["communication"] == 0


def test_a_share_of_what_was_computed_is_booked_once(make_run):
    run = make_run()
    callback, stopwatch = Communication(every_steps=1, context=run.context), run.context.events.stopwatch
    callback._share = 0.25
    for _ in range(2):
        stopwatch.switch("compute")
        time.sleep(0.05)
        stopwatch.switch("logging")
        callback._book()
        callback._book()
    spent = stopwatch.seconds()
    assert spent["communication"] / (spent["communication"] + spent["compute"]) == pytest.approx(0.25)


@pytest.mark.distributed
@pytest.mark.slow
def test_waiting_for_a_rank_that_is_late_is_communication(tmp_path: Path, dataset_folder: Path):
    """The second rank computes 0.2 s longer in every step: the first one waits for it."""
    train(tmp_path, dataset_folder, "late")
    for rank, is_waiting in (("0", True), ("1", False)):
        rows = [json.loads(line) for line in (tmp_path / f"events/rank{rank}.jsonl").read_text().splitlines()]
        assert [row["name"] for row in rows].count("trace") == 4, "the third step and the fifth, begun and ended"
        last = [row for row in rows if row["name"] == "ledger"][-1]
        share = last["communication"] / (last["communication"] + last["compute"])
        assert (share > 0.6) == is_waiting, last
        assert (share < 0.4) != is_waiting, last
