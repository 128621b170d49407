"""`batch.micro_batch_sequences=auto`: the largest micro batch for this machine, and the advice if none fits."""

import os
from dataclasses import dataclass, replace
from typing import Final

import torch

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.machine.hardware import find_device
from lmtrain.accounting.quantities import format_count
from lmtrain.accounting.training_plan.fit import Setting, largest_micro_batch, memory_of
from lmtrain.errors import ConfigurationError, OutOfMemory
from lmtrain.launch.process_group import broadcast_outcome
from lmtrain.run.planning.auto_recompute import chooses_recompute, with_recompute
from lmtrain.run.planning.fit_setting import fit_setting
from lmtrain.run.planning.free_memory import available_bytes
from lmtrain.run.planning.known_models import model_facts
from lmtrain.run.planning.less_memory import less_memory
from lmtrain.run.planning.plan import fitted_batch
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig
from lmtrain.run.settings import TrainerSettings

OF_MEMORY: Final = (
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",
)
CPU_SHARE = 0.8  # of the free memory: the rest is for the machine's other processes


@dataclass(frozen=True)
class HeldDevice:
    """The device of one rank: its product name, None for a CPU, and how many bytes a run may take."""

    name: str | None
    num_bytes: int


def batch_of(config: RunConfig) -> BatchPlan:
    """Return the config's batch; the first rank resolves `auto` for all.

    Raises:
        ConfigurationError: It does not divide, or not even one sequence fits.
    """
    if config.batch.micro_batch_sequences != "auto":
        return config.divided(config.batch)
    return broadcast_outcome(lambda: _largest(config))


def recompute_here(config: RunConfig) -> RunConfig:
    """Return the config with its choice of recomputation settled for this device; the first rank decides for all."""
    if not chooses_recompute(config):
        return config
    word = broadcast_outcome(lambda: _recompute_word(config))
    return with_words(config, [word])


def _recompute_word(config: RunConfig) -> str:
    chosen, reason = with_recompute(config, setting_here)
    print(reason, flush=True)
    return f"recompute={chosen.recompute.word}"


def held_device(trainer: TrainerSettings) -> HeldDevice:
    """Return the device of this rank; ranks on one CPU share its free memory."""
    if torch.cuda.is_available() and trainer.accelerator != "cpu":
        free, _ = torch.cuda.mem_get_info()  # without the memory of other processes
        return HeldDevice(torch.cuda.get_device_name(), free + torch.cuda.memory_reserved())
    free = available_bytes() or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return HeldDevice(None, int(free * CPU_SHARE / trainer.devices))


def setting_here(config: RunConfig) -> Setting:
    """Return the setting behind the memory of this rank's device."""
    device = held_device(config.trainer)
    planned = planned_setting(config)
    if device.name and find_device(device.name):
        planned = replace(planned, cluster=replace(planned.cluster, device=device.name))
    if device.name:
        planned = replace(planned, host=None)
    elif planned.host:  # this process is there already, not in the free memory
        planned = replace(planned, host=replace(planned.host, process_bytes=0))
    facts = model_facts(config, planned)
    most_bytes = min(device.num_bytes, int(config.cluster.memory_bytes or device.num_bytes))
    return replace(fit_setting(planned, facts), device_bytes=most_bytes)


def is_out_of_memory(failure: RuntimeError) -> bool:
    """Tell whether a failure of torch, CUDA, cuBLAS or NCCL is one of memory, on a GPU or on a CPU."""
    return isinstance(failure, torch.OutOfMemoryError) or any(words in str(failure) for words in OF_MEMORY)


def out_of_memory(config: RunConfig, batch: BatchPlan) -> OutOfMemory:
    """Describe the need of a run out of memory, and the largest fitting micro batch."""
    size = f"batch.micro_batch_sequences={batch.micro_batch_sequences}"
    try:
        setting = setting_here(config)
    except ConfigurationError as unplanned:
        return OutOfMemory(f"out of memory at {size}, which cannot be planned: {unplanned}")
    needed, held = memory_of(setting, batch).total, setting.device_bytes or 0
    smaller = largest_micro_batch(setting, batch)
    if smaller and smaller.micro_batch_sequences < batch.micro_batch_sequences:
        fix = f"fits with batch.micro_batch_sequences={smaller.micro_batch_sequences}"
    elif half := _half(batch, example_rows=setting.example_rows):
        fix = f"try batch.micro_batch_sequences={half}"
    else:
        fix = f"try {less_memory(config)}"
    return OutOfMemory(
        f"out of memory at {size}: the plan says {needed / 1e9:.1f} GB, the device has {held / 1e9:.1f} GB "
        f"beside other processes; {fix}."
    )


def _half(batch: BatchPlan, *, example_rows: int) -> int | None:
    """Return the largest micro batch of whole examples, half of this one at most, or None without one."""
    sizes = batch.micro_batches(example_rows=example_rows)
    return next((size for size in sizes if size <= batch.micro_batch_sequences // 2), None)


def _largest(config: RunConfig) -> BatchPlan:
    found = fitted_batch(config, setting_here(config))
    print(
        f"batch.micro_batch_sequences=auto: {found.micro_batch_sequences} of "
        f"{format_count(found.sequences_per_rank, 'sequence')} at a time, "
        f"{format_count(found.accumulation_micro_steps, 'micro-step')} a step",
        flush=True,
    )
    return found
