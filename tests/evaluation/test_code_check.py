"""Programs that pass or fail, and harmful ones, ended before their harm."""

import socket
from pathlib import Path

import pytest

from lmtrain.evaluation.code_check import passes, runs

PROMPT = 'from typing import List\n\ndef add(a: int, b: int) -> int:\n    """Add."""\n'
TEST = "def check(f):\n    assert f(1, 2) == 3\n"


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("    return a + b\n", True),
        ("Here:\n```python\ndef add(a: int, b: int) -> List:\n    return a + b\n```\nDone.", True),
        ("    return a - b\n", False),
        ("    import sys\n    sys.exit(0)\n", False),
        ("    import os\n    os._exit(0)\n", False),
        ("    return (\n", False),
    ],
)
def test_a_function_is_right_where_it_passes_its_test(answer, is_right):
    assert passes(answer, prompt=PROMPT, test=TEST, name="add") is is_right


def test_a_program_has_limits_on_time_memory_files_programs_and_the_network(tmp_path):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for program in (
        "while True: pass",
        "x = bytearray(1 << 31)",
        f"open({str(victim)!r}, 'w')",
        f"import os; os.remove({str(victim)!r})",
        f"import pathlib; pathlib.Path({str(victim)!r}).unlink()",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.fork()",
        f"import socket; socket.create_connection(('127.0.0.1', {port}))",
    ):
        assert not runs(program, cpu_seconds=1), program
    assert victim.read_text() == "kept"
    assert runs("import math, re, collections; assert open(collections.__file__).read(1)")
    listener.close()


def test_the_environment_of_this_process_is_not_the_program_s(monkeypatch):
    monkeypatch.setenv("SECRET", "word")
    assert runs("import os; assert 'SECRET' not in os.environ")
    assert not list(Path.cwd().glob("program*"))
