"""A pipeline killed in each of its stages: does the same command go on, and to the same model?

A tiny `speedrun_cpu` as typed by a person, with a preference or reward stage left out. Once undisturbed; once with
SIGKILL to all of its processes in every stage and while the card is written, the same command again after each.
The exported weights of both must be the same bytes, and no stage that had ended runs again.

    OMP_NUM_THREADS=1 python benchmarks/questions/pipeline_kills.py --json OUT
"""

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

TINY: Final = ("model=llama_tiny", "model.width=16", "model.num_heads=1", "model.num_layers=1")
SMALL: Final = ("model.feed_forward_width=32", "model.num_bigram_buckets=0", "model.value_embedding_layers=[]")
BASE: Final = ("tokenizer=byte_level", "tokenizer.vocab_size=512", "tokenizer.chat=true", "source=made_conversations")
EACH: Final = (
    *("data=prepared", "source=made_conversations", "source.num_conversations=120", "data.folder.references=false"),
    *("compile=none", "precision=fp32", "logger=none", "callbacks.text_samples.num_new_tokens=4"),
    *("callbacks.checkpoint.every_steps=8", "deterministic=true"),
)
SHORT: Final = ("base.budget.tokens=40K", "talker.budget.tokens=20K")
STAGES: Final = ("base", "base_text", "base_answers", "talker", "talker_answers", "exported")
STARTED: Final = re.compile(r"^\[(\d)/\d\] (\w+): lmtrain ")


def words() -> list[str]:
    """Return the command's words."""
    return [
        *(f"base.{word}" for word in (*TINY, *SMALL, *BASE, "batch.context_tokens=64", "batch.tokens_per_step=512")),
        *(f"each.{word}" for word in EACH),
        *SHORT,
        *(f"pipeline.stages.{name}.words=[--made,7,--num-new-tokens,3]" for name in ("base_answers", "talker_answers")),
    ]


class Command:
    """One start of the pipeline in a folder, its lines as they come."""

    def __init__(self, folder: Path) -> None:
        """Start it in a session of its own."""
        self.log = folder / "log.txt"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lmtrain.cli", "pipeline", *words()],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> int:
        """Wait for its end."""
        return self._process.wait()

    def started(self) -> list[str]:
        """Return the stages that it has run so far."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [found.group(2) for line in lines if (found := STARTED.match(line))]

    def kill_when(self, is_time: Callable[[], bool]) -> bool:
        """Kill all of it as soon as it is time; return whether it had not ended before."""
        while not is_time():
            if self._process.poll() is not None:
                return False
            time.sleep(0.02)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return True


def is_within(folder: Path, stage: str, command: Command) -> bool:
    """Tell whether a stage is at work: a training in its steps, an evaluation or export with a process."""
    if stage not in command.started():
        return False
    if stage in ("base", "talker"):
        return any((folder / "runs/speedrun_cpu" / stage / "checkpoints").glob("step_*"))
    time.sleep(1.0)  # into its work
    return True


def weights_of(folder: Path) -> str:
    """Return a hash of the exported weights."""
    return hashlib.sha256((folder / "runs/speedrun_cpu/exported/model.safetensors").read_bytes()).hexdigest()


def undisturbed(folder: Path) -> str:
    """Run it once to the end."""
    command = Command(folder)
    if command.wait():
        raise SystemExit(command.log.read_text())
    return weights_of(folder)


def killed(folder: Path, stages: Sequence[str]) -> list[dict[str, object]]:
    """Kill it in each stage and while it writes the card; return what each start ran."""
    rows: list[dict[str, object]] = []
    for stage in (*stages, "card"):
        command = Command(folder)
        card = folder / "runs/speedrun_cpu/exported/config.json"
        was_killed = command.kill_when(card.is_file if stage == "card" else lambda: is_within(folder, stage, command))  # noqa: B023
        rows.append({"killed_in": stage, "was_killed": was_killed, "ran": command.started()})
        print(rows[-1], flush=True)
    last = Command(folder)
    rows.append({"killed_in": None, "exit_code": last.wait(), "ran": last.started()})
    print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Compare a disturbed pipeline with an undisturbed one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the result")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        whole, parts = Path(place) / "whole", Path(place) / "parts"
        whole.mkdir()
        parts.mkdir()
        rows = killed(parts, STAGES)
        result = {
            "starts": rows,
            "same_weights": undisturbed(whole) == weights_of(parts),
            "has_card": (parts / "runs/speedrun_cpu/card.html").is_file(),
        }
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2))
    return 0 if result["same_weights"] and result["has_card"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
