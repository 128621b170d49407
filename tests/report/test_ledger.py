"""The ledger: its accounts add up to the clock, and rates, money and plan follow from them."""

import json
import os
import time

import pytest

from lmtrain.report.ledger import read_ledger, slow_ranks
from lmtrain.report.ledger_page import page
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.report.show import plain_text
from tests.report.ledger_folder import PLAN, ROWS, row, write, write_fork


def text_of(ledger):
    return plain_text(page(ledger))


def test_the_accounts_are_those_of_the_events(tmp_path):
    ledger = read_ledger(write(tmp_path / "a"))
    assert ledger.time.seconds == {"setup": 9.0, "compute": 40.0, "data_wait": 1.0, "lost": pytest.approx(23.0)}
    assert ledger.time.wall_seconds == pytest.approx(49.0 + 24.0)
    assert (ledger.step, ledger.own.tokens, ledger.time.num_attempts) == (20, 20_000, 2)
    over = {"computing": pytest.approx(500.0), "steps": None, "clock": pytest.approx(20_000 / 73)}
    assert ledger.speeds == over, "nobody logged a speed"


def test_utilization_and_money_follow_from_plan_and_clock(tmp_path):
    ledger = read_ledger(write(tmp_path / "a"))
    assert ledger.mfu("palm", "computing") == pytest.approx(6e6 * 500 / (2 * 1e9))
    assert ledger.mfu("causal", "clock") == pytest.approx(5e6 * 20_000 / 73 / (2 * 1e9))
    assert ledger.usd == pytest.approx(73 / 3600 * 2 * 36)
    assert ledger.usd_of(ledger.projected_device_seconds) == pytest.approx((73 + 41) / 3600 * 2 * 36), (
        "20 more, without set-up and loss"
    )
    finished = read_ledger(write(tmp_path / "c", status="FINISHED"))
    assert finished.projected_device_seconds == pytest.approx(2 * 73), "early stopping ended it"
    rows = [each | {"num_devices": 8} if each.get("attempt") == 1 else each for each in ROWS]
    other = write(tmp_path / "b", rows=rows)
    assert read_ledger(other).usd == pytest.approx((49 * 8 + 24 * 2) / 3600 * 36), "each attempt by its own devices"
    assert json.loads(json.dumps(ledger.to_json()))["goodput"] == pytest.approx(40 / 73)


def test_every_second_beyond_the_plan_has_a_reason(tmp_path):
    found = read_ledger(write(tmp_path / "a")).to_json()["plan_and_fact"]
    assert found["seconds"] == {"planned": 20.0, "fact": pytest.approx(73.0)}
    assert found["mfu_palm"] == {"planned": 0.4, "fact": pytest.approx(0.2), "planned_by": "assumed"}
    assert found["reasons"] == {"utilization": 20.0, "setup": 9.0, "data_wait": 1.0, "lost": pytest.approx(23.0)}
    assert sum(found["reasons"].values()) == pytest.approx(found["difference_seconds"])


def test_planned_answers_are_no_excess_and_a_run_is_compared_with_its_start(tmp_path):
    rows = [ROWS[0], row(0, start=1005.0), row(20, start=1045.0, compute=25.0, generation=15.0)]
    run = write(tmp_path / "b", rows=rows, plan=PLAN | {"generation": {"seconds_per_step": 0.5}})
    start = write(tmp_path / "base")
    (run / "attempts/1").mkdir(parents=True)
    config = {"init_from": f"{start}/checkpoints/step_00000020"}
    (run / "attempts/1/job.json").write_text(json.dumps({"config": config}))
    ledger = read_ledger(run)
    found = ledger.to_json()["plan_and_fact"]
    assert found["seconds"]["planned"] == 30.0
    assert found["reasons"] == {"utilization": 5.0, "generation": 5.0, "host_overhead": 5.0}
    text = text_of(ledger)
    assert "of its start  61.6% of the device time of base: 1min30s of 2min26s, $0.900 of $1.46" in text
    assert "generation      15s   $0.300    33.3%" in text


def test_padding_is_taken_off_the_tokens_and_so_off_speed_and_utilization(tmp_path):
    counted = [row(0, start=1005.0, tokens=0), row(20, start=1045.0, tokens=18_000, compute=40.0)]
    ledger = read_ledger(write(tmp_path / "a", rows=[ROWS[0], *counted]))
    assert (ledger.own.tokens, ledger.own.all_tokens, ledger.own.trained_share) == (18_000, 20_000, pytest.approx(0.9))
    assert ledger.speeds["computing"] == pytest.approx(18_000 / 40)
    text = text_of(ledger)
    assert "20.0K tokens (18.0K with loss), 1 attempt" in text
    assert "  tokens/s with loss" in text
    assert "computing at 20.0% MFU of all tokens, not 40.0%" in text, "the plan computes them all"
    assert "with loss" not in text_of(read_ledger(write(tmp_path / "b")))


def test_flops_of_the_real_batches_have_their_own_utilization(tmp_path):
    counted = [
        row(0, start=1005.0, tokens=0, flops=0.0),
        row(20, start=1045.0, tokens=18_000, flops=9e10, compute=40.0),
    ]
    ledger = read_ledger(write(tmp_path / "a", rows=[ROWS[0], *counted]))
    assert (ledger.own.flops, ledger.to_json()["flops"]) == (9e10, 9e10)
    assert ledger.mfu("batch", "computing") == pytest.approx(9e10 / 40 / (2 * 1e9)), "tokens without loss too"
    assert "by the documents and windows of the batches" in text_of(ledger)
    older = read_ledger(write(tmp_path / "c", rows=[*ROWS[:3], ROWS[5], ROWS[6], counted[1] | {"start": 1084.0}]))
    assert older.own.flops == pytest.approx(9e10 / 10 * 20), "an attempt of an older version has none"
    before = read_ledger(write(tmp_path / "b"))
    assert (before.mfu("batch", "computing"), before.to_json()["flops"]) == (None, None)


def test_every_rate_of_a_fork_is_over_its_own_tokens_and_seconds(tmp_path):
    ledger = read_ledger(write_fork(tmp_path / "a"))
    assert (ledger.step, ledger.own.tokens, ledger.own.all_tokens) == (40, 20_000, 20_000), "20 of the 40 steps"
    assert ledger.speeds == {"computing": 500.0, "steps": None, "clock": pytest.approx(20_000 / 45)}
    assert ledger.mfu("palm", "computing") == pytest.approx(6e6 * 500 / (2 * 1e9))
    told = ledger.to_json()
    assert told["plan_and_fact"]["seconds"] == {"planned": 20.0, "fact": 45.0}
    assert told["forked_from"] == {"run": "runs/dog", "is_gone": True, "step": 20, "tokens": 20_000}
    assert "step 40 of 40, 40.0K tokens (20.0K of them of runs/dog, no longer there), 1 attempt" in " ".join(
        text_of(ledger).split()
    )
    assert read_ledger(write(tmp_path / "b")).to_json()["forked_from"] is None


def test_what_is_not_known_is_null_and_never_a_guess(tmp_path):
    plan = PLAN | {"peak": {"flops": None, "source": "unknown"}, "cost": {}, "time": None}
    ledger = read_ledger(write(tmp_path / "a", plan=plan))
    assert (ledger.mfu("palm", "clock"), ledger.usd) == (None, None)
    assert ledger.beside_plan is None


def test_a_run_that_goes_on_is_on_the_clock_until_now(tmp_path):
    began = time.time() - 50
    rows = [
        {"name": "attempt", "start": began, "attempt": 1, "started_at": began},
        row(5, start=began + 10, compute=10.0),
    ]
    folder = write(tmp_path / "a", rows=rows)
    os.utime(folder / "events" / "rank0.jsonl", (began + 10, began + 10))
    (attempt,) = read_attempts(folder, is_running=True)
    assert attempt.wall_seconds == pytest.approx(50, abs=5)


SPENT = [ROWS[0], row(0, start=1005.0, setup=5.0), row(10, start=1019.0, setup=5.0, compute=10.0, evaluation=4.0)]


@pytest.mark.parametrize(
    ("horizon", "passes", "left"),
    [
        ({"steps": 110}, None, 140.0),
        ({"steps": 110}, 2, 104.0),  # one pass of 4 s is over, one is left
        ({"steps": 110, "seconds": 49.0, "time_limit": "hours"}, 2, 30.0),
        ({"steps": 110, "seconds": 10.0, "time_limit": "hours"}, 2, 0.0),
        ({"steps": 110, "seconds": 39.0, "time_limit": "usd"}, 2, 20.0),
        ({}, None, 0.0),
    ],
)
def test_a_run_goes_on_for_its_steps_its_passes_and_no_longer_than_its_budget(tmp_path, horizon, passes, left):
    plan = PLAN | {"horizon": horizon}
    if passes is not None:
        plan["evaluation"] = {"num_passes": passes, "tokens_per_pass": 100}
    ledger = read_ledger(write(tmp_path / "a", rows=SPENT, plan=plan))
    assert ledger.projected_device_seconds == pytest.approx(2 * (19 + left))


def rows(*, own, waiting, data_wait=0.0):
    attempt = {"name": "attempt"}
    ledger = [{"name": "ledger", "step": step, "data_wait": data_wait * step} for step in (0, 10)]
    return [
        *(attempt, {"name": "traced_step", "own_seconds": 9.0, "waiting_seconds": 0.0}),  # of an earlier attempt
        *(attempt, *ledger, {"name": "traced_step", "own_seconds": own, "waiting_seconds": waiting}),
    ]


def test_the_rank_with_more_work_than_the_median_is_named_with_its_cause():
    found = slow_ranks(
        [
            (0, rows(own=1.0, waiting=1.0)),
            (1, rows(own=2.0, waiting=0.0)),
            (2, rows(own=1.0, waiting=0.5, data_wait=0.5)),
            (3, rows(own=1.0, waiting=1.0)),
        ]
    )
    assert found is not None
    assert found.slow_words == "rank 1 (computing), rank 2 (data wait)"
    assert found.to_json()["slow"] == [1, 2]
    assert found.num_steps == 1


def test_a_straggling_stage_is_named(tmp_path):
    folder = write(tmp_path / "a", plan=PLAN | {"batch": PLAN.get("batch", {}) | {"num_stages": 2, "tensor_ranks": 2}})
    for rank in range(4):
        with (folder / "events" / f"rank{rank}.jsonl").open("a") as file:
            own = rows(own=2.0 if rank == 3 else 1.0, waiting=0.5)
            file.writelines(f"{json.dumps(each | {'start': 1000.0})}\n" for each in own)
    found = read_ledger(folder)
    assert found.by_rank is not None
    assert found.by_rank.slow_words == "rank 3 (stage 1, computing)"
