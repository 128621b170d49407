"""A refusal of runs larger than this machine's memory: the kernel would kill them without a message."""

from typing import Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.accounting.training_plan.fit import largest_micro_batch, memory_of
from lmtrain.errors import ConfigurationError
from lmtrain.run.planning.auto_batch import held_device, setting_here
from lmtrain.run.planning.auto_recompute import with_recompute
from lmtrain.run.planning.less_memory import less_memory
from lmtrain.run.run_config import RunConfig

# Less than any run takes: a run of which this is a small part of the memory is not looked at more closely, which can
# take seconds for a model that is new here.
FEWEST_BYTES_A_PARAMETER: Final = 4
FEWEST_BYTES_A_TOKEN: Final = 4_096
CLEARLY_ENOUGH: Final = 1 / 32  # of the memory: a run on a CPU takes up to some twenty times those bytes


def require_memory(config: RunConfig, batch: BatchPlan, *, num_parameters: int) -> None:
    """Compare the plan of a run's memory with this machine's free memory.

    Raises:
        ConfigurationError: It does not fit; the message has a fitting micro batch.
    """
    device = held_device(config.trainer)
    tokens = batch.micro_batch_sequences * batch.context_tokens
    least = num_parameters * FEWEST_BYTES_A_PARAMETER + tokens * FEWEST_BYTES_A_TOKEN
    if least < CLEARLY_ENOUGH * device.num_bytes:
        return
    config, _ = with_recompute(config, setting_here)  # with the recomputation that the run will choose
    setting = setting_here(config)
    needed, held = memory_of(setting, batch).total, setting.device_bytes or device.num_bytes
    if needed <= held:
        return
    fitting = largest_micro_batch(setting, batch)
    fix = (
        f"nearest that fits: batch.micro_batch_sequences={fitting.micro_batch_sequences}, accumulated over "
        f"{format_count(fitting.accumulation_micro_steps, 'micro-step')} a step"
        if fitting
        else f"not {setting.least_words} fits: take a smaller model, {less_memory(config)}"
    )
    raise ConfigurationError(
        f"batch.micro_batch_sequences={batch.micro_batch_sequences} of {batch.context_tokens} tokens needs "
        f"{format_quantity(needed, 'bytes')} on each device, of which {format_quantity(held, 'bytes')} are free; {fix}."
    )
