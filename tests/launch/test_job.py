"""The ends of a job's ranks become one exit code."""

import json
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.launch.rank_ends import RankEnd, root_cause
from lmtrain.launch.worker import run_guarded

REFUSED = RankEnd(rank=2, exit_code=4, time=3.0, message="no data")
KILLED = RankEnd(rank=1, exit_code=-9, time=2.0)
FIRST = RankEnd(rank=1, exit_code=1, time=1.0, message="ValueError: boom")
LATER = RankEnd(rank=0, exit_code=1, time=1.5, message="RuntimeError: connection closed by peer")
SILENT = RankEnd(rank=1, exit_code=1, time=2.0)
LOST = RankEnd(rank=0, exit_code=1, time=0.5, message="another rank failed", follows=True)


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ([LATER, KILLED, REFUSED], REFUSED),
        ([LATER, KILLED], KILLED),
        ([LATER, FIRST], FIRST),
        ([LOST, SILENT], SILENT),
        ([RankEnd(rank=1, exit_code=2, time=1.0), RankEnd(rank=0, exit_code=2, time=9.0)], None),
    ],
)
def test_the_root_cause_explains_the_other_ends(ends: list[RankEnd], cause: RankEnd | None) -> None:
    assert root_cause(ends) == (cause or ends[1])


def fail(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("a=1"), 2),
        (ValueError("boom"), 1),
        (SystemExit(7), 7),
        (SystemExit("sorry"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(None), 0),
    ],
)
def test_an_exception_of_a_rank_becomes_an_exit_code(error: BaseException, code: int) -> None:
    assert run_guarded(lambda: fail(error), None) == code


@pytest.mark.parametrize("kind", [ConfigurationError, ValueError, SystemExit])
def test_a_ranks_error_is_recorded_without_secrets(
    kind: type[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_guarded(lambda: fail(kind("postgresql://me:canary@h refused")), str(tmp_path / "error.json"))
    row = json.loads((tmp_path / "error.json").read_text())
    assert isinstance(row["timestamp"], int)
    for text in (row["message"], capsys.readouterr().err):
        assert "postgresql://[redacted]@h refused" in text
