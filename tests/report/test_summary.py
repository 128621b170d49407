"""The last page of a run in the terminal."""

import json

from lmtrain.report.runs.facts import RunRecord
from lmtrain.report.summary import print_summary, summarize
from lmtrain.tracking.run_log import RunLog
from tests.points import append_point
from tests.report.conftest import write


def job(folder, *overrides, **config):
    write(folder / "attempts/1/job.json", {"overrides": overrides, "config": config})


def test_it_has_cost_scores_checkpoints_and_the_next_commands(folder):
    job(folder, "seed=3", "run.name=cat", optimizer={"lr": 0.025}, budget={"tokens": 1.5e6, "hours": 2.0})
    text = summarize(folder)
    assert "3.0K tokens in 300 steps, 200 tokens/s (timed over 15s after the first step), $1.50" in text
    start = text.splitlines().index("Bits per byte of held-out text: all, 4,999 bytes, windows of 256 tokens")
    assert [line.split() for line in text.splitlines()[start + 1 : start + 5]] == [
        ["before", "training", "8.030"],
        ["gzip", "-9", "1.930"],
        ["xz", "-9e", "1.586"],
        ["after", "training", "1.450"],
    ]
    assert f"{folder}/checkpoints/step_00000300\n" in text
    assert f"best checkpoint (1.400)   {folder}/checkpoints/step_00000200\n" in text
    for command in (
        "python train.py seed=3 run.name=cat budget.tokens=3000000 budget.hours=4",
        "python train.py -m seed=3 optimizer.lr=0.0125,0.025,0.05",
        "python train.py seed=3 source=files 'source.paths=[my/notes]'",
        "lmtrain ui",
    ):
        assert f"  {command}\n" in text


def test_a_run_under_way_is_followed_and_stopped_not_trained_on(folder):
    state = {"status": "RUNNING", "mlflow_run_id": "4f2a", "process": 1}
    write(folder / "status.json", state)
    text = summarize(folder)
    if RunRecord(folder).shown_status == "RUNNING":
        for command in (f"lmtrain tail {folder}", f"lmtrain stop {folder}", f"lmtrain ledger {folder}", "lmtrain ui"):
            assert f"  {command}\n" in text
        assert "train.py" not in text


def test_code_allowed_in_the_command_is_allowed_in_the_next_ones(folder):
    text = summarize(folder, allowed=("my_package.", "x."))
    assert f"  lmtrain chat {folder} --allow-target my_package. --allow-target x.\n" in text
    assert "python train.py --allow-target my_package. --allow-target x. optimizer.lr" in text
    write(folder / "attempts/1/job.json", {"overrides": ["seed=3"], "config": {}, "config_dir": "my options"})
    assert "python train.py --config-dir 'my options' seed=3 run.name=cat" in summarize(folder)


def test_a_sample_cannot_command_the_terminal(folder):
    (folder / "samples.jsonl").write_text(json.dumps({"text": "a\x1b[31m[bold]b\x07"}) + '\n{"torn')
    text = summarize(folder)
    assert not set(text) & {"\x1b", "\x07"}
    assert "[bold]b" in text


def test_a_run_of_which_little_is_known_has_a_summary(tmp_path, capsys):
    print_summary(tmp_path)
    printed = capsys.readouterr().out
    assert "0 tokens in 0 steps" in printed
    assert "\x1b" not in printed


def test_a_run_that_failed_says_why_and_goes_on_to_its_own_budget(folder):
    write(folder / "status.json", {"status": "FAILED", "exit_code": 3, "reason": "Step 3 has loss nan."})
    append_point(RunLog(folder), 301, 3010, {"train/skipped_steps": 2.0})
    text = summarize(folder)
    assert "\nfailed: Step 3 has loss nan.\n" in text
    assert "2 steps skipped as spikes" in text
    assert "# go on, to its budget\n  python train.py optimizer.lr=0.02 run.name=cat\n" in text
    assert "twice" not in text
