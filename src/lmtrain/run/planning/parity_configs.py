"""The two configs that `lmtrain parity` trains: the ranks', small enough for this machine, and one process's."""

from dataclasses import dataclass
from typing import Any, Final

import torch

from lmtrain.accounting.batches import MICRO_BATCH
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.options.parts import CompileFacts, RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.planning.machine_limits import available_bytes
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.task import example_rows

BYTES_PER_PARAMETER: Final = 4 * 7  # weight, gradient, two moments, and the tensors written and read
MOST_FLOPS: Final = 4e12  # of both trainings: minutes on a few cores
MOST_SHARE: Final = 0.6  # of the free memory
STEADY_EPS, STEADY_DTYPE = 1e-4, "fp32"  # Adam and Muon enlarge the rounding of gradients near zero


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One process's config and the ranks', with the settings that differ from those asked for."""

    alone: RunConfig
    together: RunConfig
    changed: tuple[str, ...]


def pair_of(config: RunConfig, *, num_steps: int) -> Pair:
    """Make a config of ranks that fits this machine, and one process's of the same micro-batches, eager and plain.

    Where experts are balanced within a micro-batch of all ranks, a step is a single one.

    Raises:
        ConfigurationError: The strategy is not one process's by design.
        EnvironmentProblem: Not even two layers fit.
    """
    require_comparable(config)
    steady = _steady(config)
    changed: list[str] = []
    if _obstacle(steady, num_steps=num_steps):
        changed = _smaller(steady)
        steady = with_words(steady, changed)
        if obstacle := _obstacle(steady, num_steps=num_steps):
            raise EnvironmentProblem(f"parity: {obstacle}; set a smaller model.width or batch.context_tokens.")
    divided = steady.divided(steady.batch)
    of_rank = of_all = divided.sequences_per_micro_step
    experts = steady.model.node("experts")
    if experts is not None and experts.values.get("load_balance_weight"):
        of_rank, of_all = divided.sequences_per_rank, divided.sequences_per_step
        changed += [f"{MICRO_BATCH}={of_rank}"] if of_rank != divided.sequences_per_micro_step else []
    together = with_words(steady, [f"{MICRO_BATCH}={of_rank}"])
    plain = [
        words_of(ModelSpread, lambda spread: spread.most_ranks == 1)[0],
        words_of(CompileFacts, lambda compilation: not compilation.compiles)[0],
        words_of(RecomputeFacts, lambda recompute: recompute.keeps_all)[0],
    ]
    alone = with_words(together, [*plain, "trainer.devices=1", f"{MICRO_BATCH}={of_all}"])
    return Pair(alone=alone, together=together, changed=tuple(changed))


def require_comparable(config: RunConfig) -> None:
    """Refuse a strategy that is still to be chosen, and one whose ranks learn otherwise than one process."""
    is_chosen_later = config.spread.chooses and config.cluster.known_device is not None
    if config.spread.equals_one_process and not is_chosen_later:
        return
    found = words_of(ModelSpread, lambda spread: spread.equals_one_process and spread.takes_many and not spread.chooses)
    raise ConfigurationError(
        f"strategy={config.strategy.word} cannot be compared with one process; must be {one_of(found)}."
    )


def _steady(config: RunConfig) -> RunConfig:
    """Return the config with settings that keep rounding small, without callbacks, and with a micro batch."""
    own: dict[str, Any] = {**config.optimizer.values}
    if isinstance(own.get("eps"), float):
        own["eps"] = max(own["eps"], STEADY_EPS)
    if "iteration_dtype" in own:
        own["iteration_dtype"] = STEADY_DTYPE
    changed = config.changed(optimizer=own, callbacks={}, optimizer_cpu_offload=False)
    return with_words(changed, [f"{MICRO_BATCH}={example_rows(config)}"]) if config.batch.is_auto else changed


def _obstacle(config: RunConfig, *, num_steps: int) -> str:
    """Return the reason why a config is too large for this machine, "" for none."""
    batch, free = config.divided(config.batch), available_bytes()
    with torch.device("meta"):
        shape = config.model.build().shape()
    num_bytes = shape.num_parameters * BYTES_PER_PARAMETER * (config.num_ranks + 1)
    if free is not None and num_bytes > MOST_SHARE * free:
        return f"the model takes {num_bytes / 1e9:.1f} GB on all ranks, and {free / 1e9:.1f} GB are free"
    flops = flops_per_token(shape, batch.context_tokens).palm * batch.tokens_per_step * num_steps * 2
    return f"the steps take {flops:.1e} FLOPs, above {MOST_FLOPS:.0e}" if flops > MOST_FLOPS else ""


def _smaller(config: RunConfig) -> list[str]:
    """Return the settings of two layers, the tokenizer's ids, and one or two examples per rank."""
    divided, rows = config.divided(config.batch), example_rows(config)
    sequences = divided.num_data_ranks * min(2, divided.accumulation_micro_steps) * rows
    few: dict[str, Any] = {"num_layers": 2, "vocab_size": config.tokenizer.values.get("vocab_size")}
    own = {key: config.model.get(key) for key, most in few.items() if isinstance(most, int)}
    words = [f"batch.tokens_per_step={sequences * divided.context_tokens}", f"{MICRO_BATCH}={rows}"]
    return [
        *words,
        *(f"model.{key}={few[key]}" for key, size in own.items() if isinstance(size, int) and size > few[key]),
    ]
