"""After a power cut each file of a run is whole: every one is written aside, fsynced and renamed, or grows by lines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny

GROWING = {"metrics.jsonl", "samples.jsonl", "rank0.jsonl", "node0.jsonl", "rank0.beat", ".lock"}
WATCH = """
import json, os, sys
from pathlib import Path
seen, synced, renamed = [], set(), []
def watch(event, args):
    if event == "open" and isinstance(args[0], str) and args[2] & (os.O_WRONLY | os.O_RDWR):
        seen.append(args[0])
    elif event == "os.rename":
        renamed.append([os.fspath(args[0]), os.fspath(args[1])])
sys.addaudithook(watch)
fsync = os.fsync
def counted(descriptor):
    synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    fsync(descriptor)
os.fsync = counted
from lmtrain.cli.main import serve
code = serve("train", sys.argv[1:], program="lmtrain train")
print("SEEN", json.dumps([code, seen, sorted(synced), renamed]))
"""


@pytest.mark.slow
def test_every_file_of_a_run_is_written_aside_and_synced(tmp_path: Path) -> None:
    words = [*tiny.TINY, "budget.steps=2", "run.name=a"]
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *words], cwd=tmp_path, env=tiny.environment(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    code, seen, synced, renamed = json.loads(done.stdout.rpartition("SEEN ")[2])
    assert code == 0, done.stderr
    run = tmp_path / "runs" / "a"
    written = [path for path in seen if "/" not in path or (tmp_path / path).is_relative_to(run)]
    assert {path for path in written if ".tmp" not in path and Path(path).name not in GROWING} == set()
    final = [tmp_path / new for _, new in renamed if (tmp_path / new).is_relative_to(run)]
    assert run / "tokenizer" / "tokenizer.json" in final
    assert [path for path in final if str(path.parent) not in synced] == [], "gone after a power cut"
