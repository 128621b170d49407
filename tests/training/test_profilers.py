"""Profiles of a few steps."""

import gzip
import json
import re

from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.training.profilers import MemoryTrace, TorchTrace


def test_the_operators_that_allocate_are_of_the_step_after_those_waited_for(make_run):
    run = make_run(steps=3)
    run.fit(TokenBudget(context=run.context), MemoryTrace(wait_steps=1, context=run.context))
    head, *table = (run.context.folder / "profile" / "memory_rank0.txt").read_text().splitlines()
    assert head == "Rank 0, 1 step up to 2"
    (titles,) = (re.split(r" {2,}", line.strip()) for line in table if "Self CPU Mem" in line)
    rows = [re.split(r" {2,}", line.strip()) for line in table if " KB" in line or " MB" in line]
    scale = {"B": 1, "KB": 2**10, "MB": 2**20}
    sizes = [row[titles.index("Self CPU Mem")].split() for row in rows]
    num_bytes = [float(size) * scale[unit] for size, unit in sizes]
    assert num_bytes == sorted(num_bytes, reverse=True)
    assert num_bytes[0] > 0


def test_the_active_steps_alone_are_in_the_trace_and_the_weights_are_the_same(make_run):
    plain = make_run(steps=6, name="plain")
    expected = plain.fit(TokenBudget(context=plain.context))
    run = make_run(steps=6)
    trace = TorchTrace(wait_steps=1, warm_up_steps=1, active_steps=2, context=run.context)
    trainer = run.fit(TokenBudget(context=run.context), trace)
    folder = run.context.folder / "profile"
    assert sorted(path.name for path in folder.iterdir()) == ["operators_rank0.txt", "trace_rank0.json.gz"]
    head, *table = (folder / "operators_rank0.txt").read_text().splitlines()
    assert head == "Rank 0, 2 steps up to 4"
    calls = {line.split()[0]: int(line.split()[-1]) for line in table if line.lstrip().startswith("aten::")}
    assert {"aten::mm", "aten::addmm"} & calls.keys()
    assert all(number % 2 == 0 for number in calls.values())
    events = json.loads(gzip.decompress((folder / "trace_rank0.json.gz").read_bytes()))["traceEvents"]
    assert len({event["name"] for event in events if event["name"].startswith("ProfilerStep#")}) == 2
    assert sum(event["name"] == "aten::embedding" for event in events) == 2
    assert not run.context.events.is_profiled
    for mine, other in zip(trainer.model.parameters(), expected.model.parameters(), strict=True):
        assert mine.equal(other)


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
