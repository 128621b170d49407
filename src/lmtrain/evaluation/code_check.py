"""Run written functions against their tests, as in HumanEval (arXiv:2107.03374), each in a process with limits."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from lmtrain.evaluation import code_process

CPU_SECONDS: Final = 5
WALL_SECONDS: Final = 30  # of a busy machine
BLOCK: Final = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
IMPORT: Final = re.compile(r"^(?:import|from) .*$", re.MULTILINE)


def passes(answer: str, *, prompt: str, test: str, name: str) -> bool:
    """Return whether an answer's function passes its test."""
    return runs(f"{written_program(answer, prompt=prompt, name=name)}\n\n{test}\n\ncheck({name})\n")


def written_program(answer: str, *, prompt: str, name: str) -> str:
    """Return the code of an answer: a whole function behind the prompt's imports, or the rest of the prompt."""
    found = BLOCK.search(answer)
    code = found.group(1) if found else answer
    if re.search(rf"^def {re.escape(name)}\b", code, re.MULTILINE):
        return "\n".join([*IMPORT.findall(prompt), code])
    return prompt + code


def runs(program: str, *, cpu_seconds: int = CPU_SECONDS) -> bool:
    """Return whether a program ends without an error, within its limits, having run to its last line."""
    mark = secrets.token_hex(16)
    asked = json.dumps({"program": program, "mark": mark, "cpu_seconds": cpu_seconds}) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(code_process.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(asked, timeout=WALL_SECONDS)
        except (subprocess.TimeoutExpired, UnicodeDecodeError):
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return out == mark
