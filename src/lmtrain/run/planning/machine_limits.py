"""This machine's memory and disk: `auto` micro batch and recomputation, and refusals of runs that do not fit.

Without these refusals the kernel would kill the run without a message, or its first save would end it.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from lmtrain.accounting.batches import MICRO_BATCH, BatchPlan
from lmtrain.accounting.machine.hardware import find_device
from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.accounting.training_plan.setting import Setting, largest_micro_batch, memory_of
from lmtrain.errors import ConfigurationError, EnvironmentProblem, OutOfMemory
from lmtrain.launch.process_group import broadcast_outcome
from lmtrain.run.planning.choices import chooses_recompute, with_recompute
from lmtrain.run.planning.known_models import model_facts
from lmtrain.run.planning.make_plan import planned_checkpoints
from lmtrain.run.planning.plan import planned_batch
from lmtrain.run.planning.setting import planned_setting, with_facts
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig
from lmtrain.run.settings import TrainerSettings
from lmtrain.training.checkpointing.host_copy import available_bytes

OUT_OF_MEMORY: Final = (
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",
)
SMALLER_RUN: Final = "a smaller model, or fewer batch.context_tokens"
CPU_SHARE: Final = 0.8  # of the free memory: the rest is for the machine's other processes
FEWEST_BYTES_PER_PARAMETER, FEWEST_BYTES_PER_TOKEN = 4, 4_096  # of any run
CLEARLY_ENOUGH: Final = 1 / 32  # of the memory: a run on a CPU takes up to some twenty times those bytes


def held_device(trainer: TrainerSettings) -> tuple[str | None, int]:
    """Return this rank's device, None for a CPU, and how many bytes a run may take; ranks on a CPU share its memory."""
    if torch.cuda.is_available() and trainer.accelerator != "cpu":
        free, _ = torch.cuda.mem_get_info()  # without the memory of other processes
        return torch.cuda.get_device_name(), free + torch.cuda.memory_reserved()
    free = available_bytes() or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None, int(free * CPU_SHARE / trainer.devices)


def setting_here(config: RunConfig) -> Setting:
    """Return the inputs of the memory of this rank's device."""
    name, num_bytes = held_device(config.trainer)
    planned = planned_setting(config)
    if name and find_device(name):
        planned = replace(planned, cluster=replace(planned.cluster, device=name))
    if name:
        planned = replace(planned, host=None)
    elif planned.host:  # this process runs already, outside of the free memory
        planned = replace(planned, host=replace(planned.host, process_bytes=0))
    most_bytes = min(num_bytes, int(config.cluster.memory_bytes or num_bytes))
    return replace(with_facts(planned, model_facts(config, planned)), held_bytes=most_bytes)


def batch_of(config: RunConfig) -> BatchPlan:
    """Return the config's batch, which must divide and fit; the first rank resolves `auto` for all."""
    if not config.batch.is_auto:
        return config.divided(config.batch)

    def largest() -> BatchPlan:
        found = planned_batch(config, setting_here(config))
        print(
            f"{MICRO_BATCH}=auto: {found.sequences_per_micro_step} of "
            f"{format_count(found.sequences_per_rank, 'sequence')} at a time, "
            f"{format_count(found.accumulation_micro_steps, 'micro-step')} per step",
            flush=True,
        )
        return found

    return broadcast_outcome(largest)


def recompute_here(config: RunConfig) -> RunConfig:
    """Return the config with recompute=auto resolved for this device; the first rank decides for all."""
    if not chooses_recompute(config):
        return config

    def chosen_word() -> str:
        chosen, reason = with_recompute(config, setting_here)
        print(reason, flush=True)
        return f"recompute={chosen.recompute.word}"

    return with_words(config, [broadcast_outcome(chosen_word)])


def require_memory(config: RunConfig, batch: BatchPlan, *, num_parameters: int) -> None:
    """Compare the planned memory of a run with this machine's free memory."""
    _, num_bytes = held_device(config.trainer)
    tokens = batch.sequences_per_micro_step * batch.context_tokens
    least = num_parameters * FEWEST_BYTES_PER_PARAMETER + tokens * FEWEST_BYTES_PER_TOKEN
    if least < CLEARLY_ENOUGH * num_bytes:
        return
    config, _ = with_recompute(config, setting_here)  # the run chooses the same
    setting = setting_here(config)
    needed, held = memory_of(setting, batch).total, setting.device_bytes or num_bytes
    if needed > held:
        raise ConfigurationError(
            f"{MICRO_BATCH}={batch.sequences_per_micro_step}: {batch.context_tokens} tokens each need "
            f"{format_quantity(needed, 'bytes')} on each device, of which {format_quantity(held, 'bytes')} are free; "
            f"set {_smaller(setting, batch, is_planned=True)}."
        )


def is_out_of_memory(failure: RuntimeError) -> bool:
    """Return whether a failure of torch, CUDA, cuBLAS or NCCL is one of memory, on a GPU or on a CPU."""
    return isinstance(failure, torch.OutOfMemoryError) or any(words in str(failure) for words in OUT_OF_MEMORY)


def out_of_memory(config: RunConfig, batch: BatchPlan) -> OutOfMemory:
    """Return the error of a run out of memory, with the largest fitting micro batch."""
    size = f"{MICRO_BATCH}={batch.sequences_per_micro_step}"
    try:
        setting = setting_here(config)
    except ConfigurationError as unplanned:
        return OutOfMemory(f"out of memory at {size}, which cannot be planned: {unplanned}")
    needed, held = memory_of(setting, batch).total, setting.device_bytes or 0
    sizes = f"the plan needs {needed / 1e9:.1f} GB of {held / 1e9:.1f} GB"
    return OutOfMemory(f"out of memory at {size}: {sizes}; set {_smaller(setting, batch, is_planned=False)}.")


def _smaller(setting: Setting, batch: BatchPlan, *, is_planned: bool) -> str:
    """Return the largest smaller micro batch that fits, or half of this one where the plan was wrong."""
    sizes = [
        one for one in batch.micro_batches(example_rows=setting.example_rows) if one < batch.sequences_per_micro_step
    ]
    found = largest_micro_batch(setting, batch)
    if found and found.sequences_per_micro_step in sizes:
        return f"{MICRO_BATCH}={found.sequences_per_micro_step}"
    half = next((one for one in sizes if one <= batch.sequences_per_micro_step // 2 and not is_planned), None)
    return f"{MICRO_BATCH}={half}" if half else SMALLER_RUN


def require_disk(config: RunConfig, parameters: TrainedParameters, *, folder: Path, num_steps: int) -> None:
    """Compare the checkpoints of a run of `num_steps` with the free space under its folder.

    Its earlier checkpoints make room for later ones.
    """
    if not any(facts.num_kept for facts in config.callback_facts.values()):
        return
    from lmtrain.doctor.checks import nearest_folder  # for a run, not for its plan

    planned = planned_checkpoints(config, planned_setting(config), parameters)
    needed = min(planned.kept_bytes, num_steps * planned.checkpoint_bytes)
    earlier = sum(file.stat().st_size for file in (folder / "checkpoints").rglob("*") if file.is_file())
    free = shutil.disk_usage(nearest_folder(folder)).free
    if free + earlier < needed:
        raise EnvironmentProblem(
            f"{folder.parent} has {format_quantity(free, 'bytes')} free, and the run's checkpoints need "
            f"{format_quantity(needed, 'bytes')} ({format_quantity(planned.checkpoint_bytes, 'bytes')} each); free "
            "some space, set run.root to a larger disk, or lower callbacks.checkpoint.keep_last."
        )
