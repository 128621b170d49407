"""The harness of one GPU as a plan of stages: what is chosen, given up, ended, kept and refused."""

import json
import signal
import subprocess
import sys

import pytest
import torch

from benchmarks.harness.hopper import first_half_hour, user_runs
from benchmarks.harness.hopper.rows import Bench
from benchmarks.questions import hopper


def test_rows_are_chosen_and_one_that_is_there_is_not_measured_again():
    held = {"speed": [{"model": "m", "variant": "fp8", "x": 1}, {"model": "m", "variant": "bf16", "not_measured": "x"}]}
    bench = Bench(torch.device("cpu"), is_toy=True, known=None, cases=["m"], variants=["fp8", "bf16"], held=held)
    wanted = {name: bench.wants("speed", name, model="m", variant=name) for name in ("fp8", "bf16", "other")}
    assert wanted == {"fp8": False, "bf16": True, "other": False}
    assert not bench.wants("speed", "bf16", model="n", variant="bf16")
    assert bench.wants("memory", "bf16", model="m")


def test_a_row_that_takes_too_long_is_given_up():
    bench = Bench(torch.device("cpu"), is_toy=True, known=None, row_seconds=0.05)
    row = bench.measured({"what": "w"}, lambda: signal.pause() or {})
    assert row == {"what": "w", "not_measured": "given up after 0.05 s"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--variants", "nope", "--only", "speed"], "--variants nope: no row of speed is called so"),
        (["--plan", "first_half_hour", "--only", "speed"], "--plan chooses parts"),
        (["--minutes", "5"], "--minutes 5: above 0, and with --plan alone"),
        (["--only", "speed", "--row-seconds", "0"], "--row-seconds 0: above 0"),
        (["--merge", "/no/such.json", "--out", "/tmp"], "no such file"),
        (["--plan", "second_half_hour"], "invalid choice"),
    ],
)
def test_words_that_make_no_sense_are_refused(words, said, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["hopper.py", *(str(tmp_path) if word == "/tmp" else word for word in words)])
    with pytest.raises(SystemExit, match="2"):
        raise SystemExit(hopper.main())
    assert said in capsys.readouterr().err


def test_a_folder_gets_at_most_eight_files_and_no_large_trace(tmp_path, monkeypatch):
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    for folder in (scratch, out):
        folder.mkdir()
    for number in range(9):
        (scratch / f"{number}.trace.json.gz").write_bytes(b"x")
    (scratch / "0.trace.json.gz").write_bytes(b"x" * 100)
    monkeypatch.setattr(hopper, "MOST_BYTES", 50)
    hopper.keep_traces(scratch, out)
    assert sorted(path.name[0] for path in out.iterdir()) == ["1", "2", "3", "4", "5"]


def stage(code, until=30.0):
    return first_half_hour.Stage((code,), until)


def test_a_plan_goes_on_after_a_failure_ends_what_takes_too_long_and_skips_what_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(first_half_hour, "HARNESS", "tests.benchmarks.stage_stand_in")
    monkeypatch.setattr(first_half_hour, "LEAST_SECONDS", 0.2)
    path, told, report = tmp_path / "hopper.json", [], {}
    stages = [stage("sleep", until=0.5), stage("done"), stage("fail"), stage("again", until=0.001)]
    for _ in range(2):
        report = first_half_hour.run(path, minutes=1, words=[str(path)], stages=stages, tell=told.append)
    outcomes = {held["stage"]: held["outcome"] for held in report["plan"]}
    assert outcomes["done"] == "done"
    assert outcomes["fail"] == "exit code 3: RuntimeError: no such kernel"
    assert outcomes["sleep"].startswith("cut off after")
    assert outcomes["again"] == "no time was left"
    assert report["parts"] == {"speed": [{"what": "done"}]}, "once: a stage that is done is not done again"
    assert told.count("done: done before") == 1


def test_a_stage_with_rows_given_up_is_not_done_and_knows_the_seconds_of_a_row(tmp_path, monkeypatch):
    def part(bench, scratch):
        yield bench.measured({"what": "w"}, lambda: signal.pause() or {})

    monkeypatch.setitem(hopper.PARTS, "data", part)
    monkeypatch.setitem(first_half_hour.PLANS, "first_half_hour", [first_half_hour.Stage(("--only", "data"), 30)])
    words = ["--plan", "first_half_hour", "--row-seconds", "0.05", "--toy", "--out", str(tmp_path)]
    assert hopper.fill(hopper.parse(words), tmp_path / "hopper.json", tmp_path) == 0
    report = json.loads((tmp_path / "hopper.json").read_text())
    assert report["parts"]["data"] == [{"what": "w", "not_measured": "given up after 0.05 s"}]
    assert [held["outcome"] for held in report["plan"]] == ["1 rows given up; the same call measures them"]


def test_the_plan_is_in_hopper_s_order_and_its_words_are_those_of_the_harness():
    stages = first_half_hour.FIRST_HALF_HOUR
    assert [stage.until for stage in stages] == sorted(stage.until for stage in stages)
    assert {stage.until for stage in stages} == {3, 12, 18, 24, 29, 30}
    for one in stages:
        assert hopper.parse(one.words).only, one.name


@pytest.mark.benchmarks  # two minutes
def test_the_first_half_hour_runs_as_a_toy_within_five_minutes(tmp_path):
    command = [sys.executable, "-m", "benchmarks.questions.hopper", "--plan", "first_half_hour", "--minutes", "5"]
    environment = user_runs.environment() | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [*command, "--toy", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False, env=environment, cwd=user_runs.ROOT,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    report = json.loads((tmp_path / "hopper_here.json").read_text())
    assert report["is_toy"]
    failed = [held for held in report["plan"] if held["outcome"].startswith("exit code")]
    assert not failed
    done = [held["stage"] for held in report["plan"] if held["outcome"] == "done"]
    order = [one.name for one in first_half_hour.FIRST_HALF_HOUR]
    assert done == order[: len(done)], "in their order, as far as five minutes go on this machine"
    assert "--only versions" in done
    assert len(list(tmp_path.iterdir())) <= hopper.MOST_FILES
    assert found.stdout.rstrip().splitlines()[-1].startswith("| loss, fp8 off plain fp32"), "the marks come last"
