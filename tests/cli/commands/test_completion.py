"""Tab in the real shells."""

import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lmtrain.cli.commands.completion import BASH, completion

PROBE = """
for line in "$@"; do
    COMP_LINE="$line" COMP_POINT=${#line} COMPREPLY=()
    _lmtrain; echo "${COMPREPLY[*]}"
done
complete -p lmtrain
"""
LINES = (
    "lmtrain gen",
    "lmtrain train optimizer=muo",
    "lmtrain train schedule.warmdown_f",
    "lmtrain export p",
    "lmtrain bench --s",
)
SECONDS = 30.0  # a shell's own start, at most


def environment() -> dict[str, str]:
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"}


def installed(shell: str) -> str:
    return shutil.which(shell) or pytest.skip(f"{shell} is not installed")


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Path]:
    def write(shell: str) -> Path:
        assert completion([shell]) == 0
        path = tmp_path / shell
        path.write_text(capsys.readouterr().out)
        return path

    return write


def test_bash_completes_the_last_word_behind_its_last_equals_sign() -> None:
    answer = subprocess.run(
        ["bash", "-c", f"{BASH}{PROBE}", "bash", *LINES], env=environment(), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert answer[0] == "generate"
    assert {"muon", "muon_nano"} <= set(answer[1].split())
    assert answer[2] == "schedule.warmdown_fraction="
    assert answer[3:5] == ["peft", "--seconds"]
    assert "-F _lmtrain" in answer[5]


@pytest.mark.external
def test_fish_completes_the_same(script: Callable[[str], Path]) -> None:
    asked = "; echo .; ".join(f"complete -C '{line}'" for line in LINES)
    told = subprocess.run(
        [installed("fish"), "--no-config", "-c", f"source {script('fish')}; {asked}"],
        env=environment(), capture_output=True, text=True, check=True, cwd=script("fish").parent,
    ).stdout  # fmt: skip
    verbs, optimizers, keys, *own = (answer.split() for answer in told.split(".\n"))
    assert own == [["peft"], ["--seconds"]]
    assert (verbs, keys) == (["generate"], ["schedule.warmdown_fraction="])
    assert {"optimizer=muon", "optimizer=muon_nano"} <= set(optimizers)


@pytest.mark.external
def test_zsh_completes_at_a_tab(script: Callable[[str], Path]) -> None:
    terminal, end = pty.openpty()
    shell = subprocess.Popen(
        [installed("zsh"), "-f", "-i"], stdin=end, stdout=end, stderr=end, env=environment(), start_new_session=True
    )
    os.close(end)

    def typed(words: str, until: str) -> str:
        os.write(terminal, words.encode())
        seen = b""
        while until.encode() not in seen and select.select([terminal], [], [], SECONDS)[0]:
            seen += os.read(terminal, 4096)
        return seen.decode(errors="replace")

    try:
        typed(f"source {script('zsh')}; echo re''ady\n", "ready")
        assert "generate " in typed("lmtrain gener\t", "generate ")
        typed("\x15", "")
        assert "raction=" in typed("lmtrain train schedule.warmdown_f\t", "raction=")
        typed("\x15", "")
        assert "peft " in typed("lmtrain import p\t", "peft ")
        typed("\x15", "")
        assert "seconds " in typed("lmtrain bench --s\t", "seconds ")
        typed("\x15", "")
        assert "muon_nano " in typed("lmtrain train optimizer=muon_n\t", "muon_nano ")
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)
