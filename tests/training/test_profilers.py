"""Profiles of a few steps."""

import gzip
import json

import pytest

from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.training.profilers import MemoryTrace, TorchTrace
from lmtrain.training.trace_summary import Activity, TraceSummary, summarize


def test_parameters_are_found_to_the_byte(make_run):
    run = make_run(steps=3)
    trainer = run.fit(TokenBudget(context=run.context), MemoryTrace(wait_steps=1, context=run.context))
    row = json.loads((run.context.folder / "profile" / "memory_rank0.json").read_text())
    num_bytes = 4 * sum(one.numel() for one in trainer.model.parameters())
    assert (row["step"], row["device"]) == (2, "cpu")
    assert row["peak"]["parameters"] == num_bytes
    assert row["peak"]["activations"] > 0
    assert row["peak"]["optimizer state"] == 0, "plain SGD"


def test_the_active_steps_alone_are_in_the_trace_and_the_weights_are_the_same(make_run):
    plain = make_run(steps=6, name="plain")
    expected = plain.fit(TokenBudget(context=plain.context))
    run = make_run(steps=6)
    trace = TorchTrace(wait_steps=1, warm_up_steps=1, active_steps=2, context=run.context)
    trainer = run.fit(TokenBudget(context=run.context), trace)
    folder = run.context.folder / "profile"
    assert sorted(path.name for path in folder.iterdir()) == ["summary_rank0.json", "trace_rank0.json.gz"]
    found = TraceSummary.from_json(json.loads((folder / "summary_rank0.json").read_text()))
    assert (found.last_step, found.num_steps) == (4, 2)
    assert {"aten::mm", "aten::addmm"} & {one.name for one in found.operators}
    assert all(one.calls % 2 == 0 for one in found.operators)
    events = json.loads(gzip.decompress((folder / "trace_rank0.json.gz").read_bytes()))["traceEvents"]
    assert len({event["name"] for event in events if event["name"].startswith("ProfilerStep#")}) == 2
    assert sum(event["name"] == "aten::embedding" for event in events) == 2
    parts = found.computing + found.communication + found.cpu_overhead + found.idle
    assert abs(parts - found.seconds) < 1e-6
    assert not run.context.events.is_profiled
    for mine, other in zip(trainer.model.parameters(), expected.model.parameters(), strict=True):
        assert mine.equal(other)


def event(name, start, end, **facts):
    return Activity(name=name, span=(start, end), **facts)


def test_every_moment_on_a_cpu_is_of_one_kind():
    events = [
        event("ProfilerStep#3", 0, 1, is_annotation=True),
        event("aten::mm", 0.1, 0.3),
        event("aten::add", 0.3005, 0.5),  # 0.5 ms of Python before it
        event("gloo:all_reduce", 0.4, 0.6, is_annotation=True),
    ]
    found = summarize(events, rank=0, last_step=3, num_steps=1)
    shares = (found.computing, found.communication, found.cpu_overhead, found.idle)
    assert shares == pytest.approx((0.3995, 0.1, 0.0005, 0.5))
    assert TraceSummary.from_json(found.to_json()) == found


def test_a_gpu_without_work_waits_for_the_host_or_for_nothing():
    gpu = {"is_on_gpu": True}
    events = [
        event("ProfilerStep#3", 0, 1, is_annotation=True),
        event("ProfilerStep#3", 0, 1, is_annotation=True, **gpu),
        event("aten::mm", 0.1, 0.4),
        event("gemm", 0.2, 0.5, **gpu),
        event("ncclDevKernel_AllReduce", 0.45, 0.7, **gpu),
    ]
    found = summarize(events, rank=1, last_step=3, num_steps=1)
    shares = (found.computing, found.communication, found.cpu_overhead, found.idle)
    assert shares == pytest.approx((0.3, 0.2, 0.1, 0.4))


def test_another_rank_and_an_attempt_cut_short_write_nothing(make_run, caplog):
    run = make_run(steps=6)
    other = TorchTrace(wait_steps=0, warm_up_steps=1, active_steps=1, ranks=[1], num_ranks=2, context=run.context)
    run.fit(TokenBudget(context=run.context), other)
    assert not (run.context.folder / "profile").exists()
    short = make_run(steps=3, name="short")
    trace = TorchTrace(wait_steps=0, warm_up_steps=1, active_steps=2, context=short.context)
    short.context.last_step.steps = 2  # as a stop does
    short.fit(TokenBudget(context=short.context), trace)
    assert not (short.context.folder / "profile").exists()
    assert "ended before its trace did" in caplog.text
