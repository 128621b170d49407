"""lmtrain: `python train.py` as it comes, through its own Trainer; only what saves, samples and tells is left out."""

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.learning_speed.task import LearningTask, Referee
from benchmarks.peers.train_step.trainer import EndOfStep
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.build import Run, build_run
from lmtrain.run.execution.run import quiet_libraries
from lmtrain.run.run_config import read_config
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog

TIMED = ["callbacks.validation.num_passes=null", "callbacks.validation.max_tokens=200"]
FOLLOWED = ["callbacks.validation.num_passes=1", "logger=none"]
GIVEN = (
    "`python train.py` with every default: model, Muon, schedule, bf16, compiled; every callback and MLflow on while "
    "it is timed, but no checkpoints and samples"
)


def words(task: LearningTask) -> list[str]:
    """Return what one would type after `python train.py`."""
    return [
        f"seed={task.seed}",
        f"budget.tokens={task.max_steps * task.tokens_per_step}",
        f"data.folder.root={task.data_root}",
        f"trainer.cpu_threads={task.threads}",
        "callbacks.checkpoint=null",
        "callbacks.text_samples=null",
        "cluster.peak_flops=1e15",  # nothing reads it here; otherwise a CPU would measure its own
        *(TIMED if task.is_timed else FOLLOWED),
        *task.words,
    ]


def make_job(task: LearningTask) -> Job:
    """Compose and check the config, and take a run folder in the task's scratch folder."""
    quiet_libraries()
    overrides = words(task)
    config = read_config(compose_config(overrides)).checked()
    root = Path(task.scratch) / "runs"
    job = Job(config=config, overrides=overrides, name=f"ours-{time.time_ns()}", root=str(root), began=time.monotonic())
    RunFolder(job.folder, root=root).create()
    return job


def run(task: LearningTask, referee: Referee) -> None:
    """Train."""
    job = make_job(task)
    built = build_run(job, rank=0, log=RunLog(job.folder))
    require_same_data(built, task)
    referee.say(num_parameters=sum(parameter.numel() for parameter in built.module.language_model.parameters()))
    if task.is_timed:
        job.config.logger.build().start(RunFolder(job.folder, root=Path(job.root)))
    referee.predict_with(lambda inputs: predict(built, inputs))
    built.trainer.callbacks.append(EndOfStep(referee))
    built.trainer.fit(built.module, datamodule=built.datamodule)
    referee.say(callback_bits_per_byte=last_validation(job.folder))


def predict(built: Run, inputs: Any) -> Any:
    """Return logits in the precision of training: [B, T] -> [B, T, V]."""
    with built.trainer.precision_plugin.forward_context():
        return built.module.language_model(inputs)


def require_same_data(built: Run, task: LearningTask) -> None:
    """Refuse to compare runs on other tokens."""
    mine, theirs = built.datamodule.dataset.manifest.fingerprint, task.dataset.manifest.fingerprint
    if mine != theirs:
        raise RuntimeError(f"the default run reads {mine}, the other loops {theirs}")


def last_validation(folder: Path) -> float:
    """Return what the run's own callback measured last."""
    key = "validation/bits_per_byte"
    lines = [json.loads(line)["metrics"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [metrics[key] for metrics in lines if key in metrics][-1]
