import json
import time

import pytest
from torch._dynamo.callback import callback_handler

from lmtrain.callbacks.ledger import Ledger
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.throughput import Throughput
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.callbacks.validation import Validation
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.tracking.run_log import read_points
from lmtrain.training.time_profiler import TimeProfiler
from tests.callbacks.tiny_run import AtStep, TinyModel


def train(run, *callbacks, **settings):
    context = run.context
    profiler = TimeProfiler(context.events.stopwatch)
    watched = (*callbacks, Ledger(every_steps=2, context=context), TokenBudget(context=context))
    run.fit(*watched, profiler=profiler, **settings)
    context.events.close()
    rows = (context.folder / "events/rank0.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, rows) if row["name"] == "ledger"]


def seconds_of(row):
    return {kind: value for kind, value in row.items() if kind not in ("name", "start", "step", "tokens")}


def test_every_reading_adds_up_to_the_clock(make_run):
    run = make_run(steps=5)
    rows = train(run)
    assert [row["step"] for row in rows] == [0, 2, 4, 5, 5]
    for row in rows:
        clock = row["start"] - run.context.events.stopwatch.started_at
        assert sum(seconds_of(row).values()) == pytest.approx(clock, abs=0.01)


def test_time_is_booked_on_what_took_it(make_run, let_pass):
    run = make_run(steps=4)

    def save(_):
        with run.context.events.pause("checkpoint"):
            let_pass(30)

    class Slow(TinyModel):
        def features(self, tokens, documents=None):
            let_pass(10)
            return super().features(tokens, documents)

    spent = seconds_of(train(run, AtStep(2, save), module=run.module(Slow()))[-1])
    assert 25 <= spent["checkpoint"] < 50, "less what other work had of it"
    assert 40 <= spent["compute"] + spent["preempted"] < 90
    assert spent["data_wait"] < 10


def test_a_checkpoint_s_steps_are_known_as_done_at_once(make_run):
    run = make_run(steps=6)
    known = []

    def save(trainer):
        trainer.save_checkpoint(run.context.folder / "x.ckpt")
        known.append(read_attempts(run.context.folder)[0].last_step)

    train(run, AtStep(3, save))
    assert known == [3]


def train_row(run):
    rows = (run.context.folder / "events/rank0.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, rows) if row["name"] == "ledger"][-1]


def test_a_run_that_fails_leaves_its_account(make_run):
    run = make_run(steps=4)

    def crash(_):
        raise KeyError("crash")

    with pytest.raises(KeyError):
        train(run, AtStep(3, crash))
    run.context.events.close()
    assert train_row(run)["step"] == 3


@pytest.mark.parametrize(("is_compiled", "kind"), [(True, "compile"), (False, "setup")])
def test_a_slow_first_step_is_compilation_or_else_set_up(make_run, let_pass, is_compiled, kind):
    class CompilesFirst(TinyModel):
        def features(self, tokens, documents=None):
            if not hasattr(self, "compiled"):
                self.compiled = True
                let_pass(50)
            return super().features(tokens, documents)

    def spent(steps):
        run = make_run(steps=steps, is_compiled=is_compiled)
        watch = Throughput(every_steps=1, context=run.context)
        return seconds_of(train(run, watch, module=run.module(CompilesFirst()))[-1])

    assert 40 < spent(4)[kind] < 70
    assert spent(4)["compute"] < 30
    alone = spent(1)
    assert 40 < (alone["compile"] if is_compiled else alone["compute"] + alone["preempted"]) < 70


def test_compilation_in_a_validation_is_compilation(make_run, let_pass):
    def compiles_slowly(graph, _):
        let_pass(100)
        return graph.forward

    model = TinyModel()
    model.compile(backend=compiles_slowly)  # without gradients in the validation, with them in the first step
    run = make_run(steps=4, is_compiled=True)
    watched = (Validation(every_steps=2, context=run.context), Throughput(every_steps=1, context=run.context))
    told = []
    watched += tuple(AtStep(n, lambda _: told.append(run.context.events.last_pauses["validation"])) for n in (1, 3))
    before, *_, last = map(seconds_of, train(run, *watched, module=run.module(model)))
    assert before["compile"] + before["preempted"] > 95
    assert last["compile"] + last["preempted"] > 190
    assert last["evaluation"] < 50
    assert told == [pytest.approx(0, abs=50)] * 2, "a validation to come compiles nothing"
    assert not callback_handler.start_callbacks
    assert not callback_handler.end_callbacks


@pytest.mark.faults
def test_a_clock_that_jumps_forward_is_no_time_of_the_run(make_run, monkeypatch):
    run = make_run(steps=6)
    began, read_clock = time.monotonic(), time.time
    jump = AtStep(3, lambda _: monkeypatch.setattr(time, "time", lambda: read_clock() + 3600))
    run.fit(
        StepLog(every_steps=1, context=run.context),
        jump,
        Ledger(every_steps=1, context=run.context),
        TokenBudget(context=run.context),
    )
    run.context.events.close()
    took_seconds = time.monotonic() - began
    (attempt,) = read_attempts(run.context.folder)
    assert attempt.wall_seconds <= took_seconds
    assert run.context.spent_seconds() <= took_seconds + 60  # the context is older than the fit
    times = [point.time for point in read_points(run.context.folder / "metrics.jsonl")]
    assert max(times) - min(times) <= took_seconds
