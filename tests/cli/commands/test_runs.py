"""Commands that read runs: ls, show, tail, ledger, report, compare, sync."""

import json
from pathlib import Path

import pytest

from lmtrain.cli.commands import runs as module
from lmtrain.cli.commands.runs import compare, ls, report, show, tail
from lmtrain.tracking.run_log import RunLog
from lmtrain.tracking.status import Status, write_status
from tests.points import append_point
from tests.report.ledger_folder import write
from tests.report.runs_on_disk import write_run
from tests.report.test_comparison import sweep


def test_all_runs_below_a_folder_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("runs/a", "runs/below/b"):
        write_run(tmp_path / name)
    assert ls([str(tmp_path / "runs")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["run", "a", "b"]
    assert ls([str(tmp_path / "runs" / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["loss"] == 4.25


def test_a_name_from_a_folder_commands_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "a")
    identity = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**identity, "name": "b\x1b[2J\u202e\r"}))
    assert tail([str(folder), "--once"]) == 0
    assert capsys.readouterr().out.endswith("\nb\N{REPLACEMENT CHARACTER}[2J\ufffd\ufffd: finished at step 2\n")


def test_a_run_is_followed_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "a", status=Status("RUNNING"))  # of this very process

    def train(_: float) -> None:
        log = RunLog(folder)
        append_point(log, 3, 300, {"train/loss": 2.0})
        log.close()
        write_status(folder, Status("FINISHED", 0))

    monkeypatch.setattr(module.time, "sleep", train)
    assert tail([str(folder), "-n", "0"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("step 3/9 | ")
    assert last == "a: finished at step 3"


def test_compare_prints_a_page_or_one_json_object(tmp_path, capsys):
    sweep(tmp_path / "runs")
    words = [str(tmp_path / "runs")]
    assert compare(words) == 0
    assert "To reach 3.1000, by the mean curve" in capsys.readouterr().out
    assert compare([*words, "--json", "--baseline", "optimizer.lr=0.2", "--metric", "validation/loss"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["baseline"], found["target"]) == ("optimizer.lr=0.2", pytest.approx(9.3))


def _files(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_commands_that_read_a_run_write_nothing_in_its_folder(tmp_path, capsys):
    run = write_run(tmp_path / "a", status=Status("RUNNING", process=1))
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (run / ".lock").symlink_to(victim)
    other = write_run(tmp_path / "b", status=Status("RUNNING", process=1))
    before = _files(tmp_path)
    for command, words in ((ls, [tmp_path]), (show, [run, other]), (tail, [run, "--once"])):
        assert command([*map(str, words)]) == 0
    assert _files(tmp_path) == before
    assert victim.read_text() == "kept"
    assert "killed" in capsys.readouterr().out, "b, which no process holds"


def test_a_page_copies_no_file_from_outside_of_its_run(tmp_path, capsys):
    run = write(tmp_path / "a\x1b[2J")
    secret = tmp_path / "secret"
    secret.write_text('{"prompt": "", "text": "my password"}')
    attempt = run / "attempts/1"
    attempt.mkdir(parents=True)
    (run / "samples.jsonl").symlink_to(secret)
    for name in ("config.yaml", "overrides.txt", "versions.json", "git.json"):
        (attempt / name).symlink_to(secret)
    assert report([str(run)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert "password" not in (run / "report.html").read_text()
