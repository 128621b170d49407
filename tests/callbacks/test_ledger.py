import json
import time

import pytest

from lmtrain.callbacks.ledger import Ledger
from lmtrain.callbacks.token_budget import TokenBudget
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
    return {kind: value for kind, value in row.items() if kind not in ("name", "start", "step")}


def test_every_reading_adds_up_to_the_clock(make_run):
    run = make_run(steps=5)
    rows = train(run)
    assert [row["step"] for row in rows] == [0, 2, 4, 5, 5]
    for row in rows:
        clock = row["start"] - run.context.events.stopwatch.started_at
        assert sum(seconds_of(row).values()) == pytest.approx(clock, abs=0.01)


def test_time_is_booked_on_what_took_it(make_run):
    run = make_run(steps=4)

    def save(_):
        with run.context.events.pause("checkpoint"):
            time.sleep(0.3)

    class Slow(TinyModel):
        def features(self, tokens, documents=None):
            time.sleep(0.1)
            return super().features(tokens, documents)

    spent = seconds_of(train(run, AtStep(2, save), module=run.module(Slow()))[-1])
    assert 0.3 <= spent["checkpoint"] < 0.5
    assert 0.4 <= spent["compute"] < 0.9
    assert spent["data_wait"] < 0.1


def test_the_first_reading_of_shares_is_in_the_log(make_run):
    run = make_run(steps=4)
    train(run)
    shares = [run.points(f"time/{kind}_share")[4] for kind in seconds_of(train_row(run))]
    assert sum(shares) == pytest.approx(1.0)


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
