"""Trainings forked from this process, which has imported the trainer and composed the config, and computed nothing.

A child is a process of its own, and does all that a start does from taking the run's folder on; of the versions of
packages, which every start writes down, it knows those that this process has read.
"""

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.launch.detect import STORE_VARIABLE, outer_launcher
from lmtrain.tracking import run_folder

if TYPE_CHECKING:
    from lmtrain.run.stored_runs.job import Job

# Small enough that starting, saving and training each take a share of a run that a random moment can hit.
WORDS: Final = (
    "model.width=16", "model.num_heads=1", "model.num_layers=1", "model.feed_forward_width=16",
    "model.num_bigram_buckets=16", "model.value_embedding_layers=[]", "data=synthetic", "data.folder.num_tokens=20000",
    "tokenizer=byte_level", "tokenizer.vocab_size=260", "batch.context_tokens=16", "batch.tokens_per_step=64",
    "compile=none", "cluster.peak_flops=1e12", "precision=fp32", "logger=none", "~callbacks.text_samples",
    "run.log_every_steps=1", "callbacks.checkpoint.every_seconds=null",
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a run's processes ended: the first code that is not 0, the seconds they took, and what they said."""

    code: int
    seconds: float
    said: str


def import_the_trainer() -> None:
    """Import all that a training imports, in its order."""
    from lmtrain.training.lean_import import import_lightning

    os.environ["OMP_NUM_THREADS"] = "1"
    import_lightning()
    for name in ("compose.compose", "execution.meta_build", "execution.run"):
        importlib.import_module(f"lmtrain.run.{name}")
    versions = run_folder.describe_versions()
    run_folder.describe_versions = lambda: versions


def compose(words: Sequence[str], *, num_ranks: int = 1) -> "Job":
    """Return the job of a command line, checked."""
    from lmtrain.cli.commands.train import make_job
    from lmtrain.run.compose.arguments import parse_arguments
    from lmtrain.run.gate import checked_configs

    arguments = parse_arguments([*words], world=(num_ranks, 1) if num_ranks > 1 else None)
    ((config, choices),) = checked_configs(arguments)
    return make_job(config, choices, arguments)


def train(
    job: "Job",
    *,
    folder: Path,
    num_ranks: int = 1,
    kill_after_seconds: float | None = None,
    rank: int = 0,
    before: Callable[[], object] = lambda: None,
) -> Ended:
    """Train a job as the run `a` of a folder; after so many seconds one rank is sent SIGKILL, if still there.

    `before` is called in each rank's process first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job = replace(job, root=str(folder.absolute()), name="a")
    console, store = folder / "console.txt", folder / f"store_{time.time_ns()}"
    ranks = {"LOCAL_WORLD_SIZE": str(num_ranks), "WORLD_SIZE": str(num_ranks), STORE_VARIABLE: str(store)}
    began = time.monotonic()
    children: list[int] = []
    for each in range(num_ranks):
        environment = {**ranks, "RANK": str(each), "LOCAL_RANK": str(each)} if num_ranks > 1 else {}
        child = os.fork()
        if child == 0:
            _be_the_trainer(job, folder, console, environment, before)
        children.append(child)
    code = _wait(children, None if kill_after_seconds is None else began + kill_after_seconds, children[rank])
    store.unlink(missing_ok=True)
    said = console.read_text() if console.exists() else ""  # killed before its first word
    return Ended(code, time.monotonic() - began, said)


def _wait(children: Sequence[int], kill_at: float | None, victim: int) -> int:
    """Return the first code that is not 0; the ranks left behind by it are ended too, as a launcher does."""
    left, first = set(children), 0
    while left:
        for child in list(left):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                left.remove(child)
                first = first or os.waitstatus_to_exitcode(status)
        if kill_at is not None and time.monotonic() >= kill_at:
            kill_at = None
            if victim in left:
                os.kill(victim, signal.SIGKILL)
        for child in left if first else ():
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return first


def _be_the_trainer(
    job: "Job", folder: Path, console: Path, environment: dict[str, str], before: Callable[[], object]
) -> None:
    """Train, and never return."""
    code = 1
    try:
        descriptor = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(descriptor, number)
        os.environ.update(environment)
        os.chdir(folder)
        before()
        from lmtrain.run.execution.start import start

        code = start(job.begun_now(), outer=outer_launcher(os.environ))
    except BaseException:  # noqa: BLE001  # a child's own end, whatever it is
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
