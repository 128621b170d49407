import json
from pathlib import Path

import pytest

from lmtrain.cli.commands import tail as module
from lmtrain.cli.commands.tail import tail
from lmtrain.tracking.run_log import RunLog
from lmtrain.tracking.status import Status, write_status
from tests.points import append_point
from tests.report.runs_on_disk import write_run

LAST = "step 2/9 | 200 tokens | loss 4.250 | lr 2.00e-02 | 1,234 tokens/s"


@pytest.mark.parametrize("words", [["--once"], []])
def test_the_last_lines_of_an_ended_run_are_printed(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tail([str(write_run(tmp_path / "a")), "-n", "1", *words]) == 0
    assert capsys.readouterr().out.splitlines() == [LAST, "a: finished at step 2"]


def test_a_fork_says_whose_tokens_it_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "fork.json").write_text('{"checkpoint": "runs/dog/checkpoints/step_00000001", "step": 1}')
    (folder / "plan.json").write_text('{"horizon": {"steps": 9}, "batch": {"tokens_per_step": 100}}')
    assert tail([str(folder), "-n", "1", "--once"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["a: 100 of its tokens are of runs/dog, no longer there.", LAST]


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
