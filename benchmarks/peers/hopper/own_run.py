"""The run of a case inside a loop's process, from the words that lie beside the task."""

import json
from pathlib import Path

from benchmarks.harness.hopper.loops import WORDS_FILE
from benchmarks.harness.train_step.task import Task
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.build import Run, build_run
from lmtrain.run.execution.run import quiet_libraries
from lmtrain.run.run_config import read_config
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog


def make_run(task: Task, *, name: str, more: tuple[str, ...] = ()) -> tuple[Job, Run]:
    """Build the run that the words describe, in a folder of the task's scratch folder."""
    quiet_libraries()
    words = [*json.loads(Path(task.scratch, WORDS_FILE).read_text()), *more]
    root = Path(task.scratch) / "runs"
    root.mkdir(parents=True, exist_ok=True)
    job = Job(config=read_config(compose_config(words)).checked(), overrides=words, name=name, root=str(root))
    RunFolder(job.folder, root=root).create()
    return job, build_run(job, rank=0, log=RunLog(job.folder))
