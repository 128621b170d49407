"""A Lightning Trainer without its losses of data, time and exactness.

Each is named in docs/decisions/0005; the tests count or break the guarded behaviour.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from typing_extensions import override

from lmtrain.accounting.options.ranges import require_count
from lmtrain.training.checkpointing.checkpoint_io import AtomicCheckpointIO
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.process_settings import answer_that_none_is_there, be_deterministic, keep_freed_memory, order_sums
from lmtrain.training.replica_groups import ReplicaGroups
from lmtrain.training.step_loop import StepLoop

QUIET: Final[dict[str, Any]] = {
    "use_distributed_sampler": False,  # swaps in a shuffled sampler at world size > 1
    "num_sanity_val_steps": 0,
    "inference_mode": False,  # inference tensors make torch.compile compile again
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "max_epochs": -1,
}


def make_trainer(
    *,
    strategy: Strategy | str,
    precision: PrecisionPlugin | str,
    devices: int = 1,
    num_nodes: int = 1,
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"] = "auto",
    accumulation_micro_steps: int = 1,
    folder: Path,
    callbacks: Sequence[pl.Callback] = (),
    detect_anomaly: bool = False,
    deterministic: bool = False,
    cpu_threads: int | None = None,
    profiler: Profiler | None = None,
    lighthouse: str | None = None,
) -> pl.Trainer:
    """Build the Trainer of a run; it stops only when a callback says so.

    `precision` may also be a word of Lightning's. `cpu_threads` None leaves torch's own choice: all cores for one
    process, a share of them under a launcher. On a CPU sums have one order, `deterministic` or not. `lighthouse` is the
    address of torchft's, `http://HOST:PORT`: this job is one of its replica groups.
    """
    require_count("trainer.cpu_threads", cpu_threads)
    if cpu_threads is not None:
        torch.set_num_threads(cpu_threads)
    if deterministic:
        be_deterministic()
    sees_own_alone = _sees_own_alone(devices, accelerator)
    is_plugin = isinstance(precision, PrecisionPlugin)
    torch.set_float32_matmul_precision(precision.matmul_precision if is_plugin else "highest")
    plugins: list[Any] = [OwnDevice()] if sees_own_alone else _environment_of(strategy)
    plugins += [precision] if is_plugin else []
    if not getattr(strategy, "writes_own_checkpoints", False):
        plugins.append(AtomicCheckpointIO())
    trainer = pl.Trainer(
        strategy=strategy,
        precision=None if is_plugin else precision,  # pyright: ignore[reportArgumentType]  # a Literal there
        devices=1 if sees_own_alone else devices,
        num_nodes=num_nodes,
        accelerator=accelerator,
        accumulate_grad_batches=accumulation_micro_steps,
        default_root_dir=folder,
        callbacks=list(callbacks),
        plugins=plugins,
        detect_anomaly=detect_anomaly,
        deterministic=deterministic,
        profiler=profiler,
        **QUIET | _asked_by(callbacks, folder=folder),
    )
    trainer.fit_loop.epoch_loop = loop = StepLoop(trainer)
    if lighthouse is not None:
        loop.groups = ReplicaGroups(trainer, loop, lighthouse=lighthouse)
    if isinstance(trainer.accelerator, CPUAccelerator):
        order_sums(refuses=deterministic)  # Lightning has set its own
        keep_freed_memory()
        answer_that_none_is_there()
    return trainer


def _asked_by(callbacks: Sequence[pl.Callback], *, folder: Path) -> dict[str, Any]:
    """Return what Lightning's own callbacks need of a Trainer: leave to save, a logger of learning rates."""
    asked: dict[str, Any] = {}
    if any(isinstance(one, ModelCheckpoint) for one in callbacks):
        asked["enable_checkpointing"] = True
    if any(isinstance(one, LearningRateMonitor) for one in callbacks):
        asked["logger"] = CSVLogger(folder, name="lightning_logs")
    return asked


class OwnDevice(TorchElasticEnvironment):
    """Ranks with one visible GPU each, as tasks of SLURM may be: it is device 0 of every rank of the node."""

    @override
    def local_rank(self) -> int:
        return 0

    @override
    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Accept one device a process in a node of several ranks."""


def _sees_own_alone(devices: int, accelerator: str) -> bool:
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    return devices > 1 and on_gpu and dist.is_initialized() and torch.cuda.device_count() == 1


def _environment_of(strategy: Strategy | str) -> list[Any]:
    """Return Lightning's environment as we know it, unless the strategy has its own.

    Lightning's own look at SLURM refuses --ntasks and takes a batch script's process for a rank (2.6.6).
    """
    if getattr(strategy, "cluster_environment", None) is not None:
        return []
    return [TorchElasticEnvironment() if dist.is_initialized() else LightningEnvironment()]
