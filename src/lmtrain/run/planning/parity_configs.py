"""The two configs that `lmtrain parity` trains: the ranks', small enough for this machine, and one process's."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

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
FEWEST_LAYERS, FEWEST_TOKENS = 2, 64
# Settings under which the rounding of fp32 stays small: Adam and Muon enlarge that of gradients near zero.
STEADY_EPS, STEADY_DTYPE = 1e-4, "fp32"
SIZES: Final = ("width", "num_heads", "num_kv_heads", "feed_forward_width", "depth")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One process's config and the ranks', with the settings that differ from those asked for."""

    alone: RunConfig
    together: RunConfig
    changed: tuple[str, ...]


def pair_of(config: RunConfig, *, num_steps: int) -> Pair:
    """Make a config of ranks that fits this machine, and one process's of the same micro-batches, eager and plain.

    Raises:
        ConfigurationError: The strategy is not one process's by design.
        EnvironmentProblem: Not even the smallest model fits.
    """
    require_comparable(config)
    steady, words = _steady(config)
    fitted, smaller = _fitted(steady, num_steps=num_steps)
    micro = fitted.divided(fitted.batch).micro_batch_sequences
    fitted = with_words(fitted, [f"batch.micro_batch_sequences={micro}"])
    plain = [
        words_of(ModelSpread, lambda spread: spread.most_ranks == 1)[0],
        words_of(CompileFacts, lambda compilation: not compilation.compiles)[0],
        words_of(RecomputeFacts, lambda recompute: recompute.keeps_all)[0],
    ]
    alone = with_words(fitted, [*plain, "trainer.devices=1"])
    return Pair(alone=alone, together=fitted, changed=(*words, *smaller))


def require_comparable(config: RunConfig) -> None:
    """Refuse a strategy that is still to be chosen, and one whose ranks learn otherwise than one process.

    Raises:
        ConfigurationError: With the comparable strategies.
    """
    is_chosen_later = config.spread.chooses and config.cluster.known_device is not None
    if config.spread.equals_one_process and not is_chosen_later:
        return
    found = words_of(ModelSpread, lambda spread: spread.equals_one_process and spread.takes_many and not spread.chooses)
    raise ConfigurationError(
        f"strategy={config.strategy.word} cannot be compared with one process; nearest valid: {one_of(found)}."
    )


def _steady(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """Return the config with settings that keep rounding small, and those settings."""
    own = config.optimizer.values
    changes: dict[str, float | str] = {}
    if isinstance(own.get("eps"), float) and own["eps"] < STEADY_EPS:
        changes["eps"] = STEADY_EPS
    if own.get("iteration_dtype", STEADY_DTYPE) != STEADY_DTYPE:
        changes["iteration_dtype"] = STEADY_DTYPE
    words = [f"optimizer.{key}={value}" for key, value in changes.items()]
    changed = config.changed(optimizer={**own, **changes}, callbacks={}, optimizer_cpu_offload=False)
    if changed.batch.micro_batch_sequences == "auto":
        words.append(f"batch.micro_batch_sequences={example_rows(config)}")
        changed = with_words(changed, words[-1:])
    return changed, words


def _fitted(config: RunConfig, *, num_steps: int) -> tuple[RunConfig, list[str]]:
    """Return the largest of ever smaller configs within this machine's memory and minutes, and its settings."""
    free, obstacle = available_bytes(), ""
    for words in _smaller(config):
        try:
            smaller = with_words(config, words)
            obstacle = _obstacle(smaller, num_steps=num_steps, free_bytes=free)
        except ConfigurationError:
            if not words:
                raise
            continue  # a size that does not go with another
        if not obstacle:
            return smaller, words
    raise EnvironmentProblem(f"parity: {obstacle}; make the model smaller, as with model.num_layers=2.")


def _obstacle(config: RunConfig, *, num_steps: int, free_bytes: int | None) -> str:
    """Return the reason why a config is too large for this machine, "" for none."""
    batch = config.divided(config.batch)
    with torch.device("meta"):
        shape = config.model.build().shape()
    num_bytes = shape.num_parameters * BYTES_PER_PARAMETER * (config.num_ranks + 1)
    if free_bytes is not None and num_bytes > MOST_SHARE * free_bytes:
        return f"the model takes {num_bytes / 1e9:.1f} GB on all ranks, and {free_bytes / 1e9:.1f} GB are free"
    flops = flops_per_token(shape, batch.context_tokens).palm * batch.tokens_per_step * num_steps * 2
    return f"the steps take {flops:.1e} FLOPs, above {MOST_FLOPS:.0e}" if flops > MOST_FLOPS else ""


def _smaller(config: RunConfig) -> Iterator[list[str]]:
    """Yield settings of ever smaller trainings: few sequences, layers and ids, then half the width or context."""
    yield []
    divided, model, context = config.divided(config.batch), config.model.values, config.batch.context_tokens
    sequences = divided.num_data_ranks * min(2, divided.accumulation_micro_steps)
    few = {"num_layers": FEWEST_LAYERS, "vocab_size": config.tokenizer.values.get("vocab_size")}
    fewer = [f"model.{key}={value}" for key, value in few.items() if _is_above(model.get(key), value)]
    sizes = {key: model[key] for key in SIZES if isinstance(model.get(key), int)}
    yield _of_batch(config, sequences, context)
    while True:
        halved = [f"model.{key}={size}" for key, size in sizes.items() if size != model[key]]
        yield [*_of_batch(config, sequences, context), *fewer, *halved]
        if sizes and all(size % 2 == 0 for size in sizes.values()):
            sizes = {key: size // 2 for key, size in sizes.items()}
        elif context >= 2 * FEWEST_TOKENS:
            context //= 2
        else:
            return


def _is_above(own: object, value: object) -> bool:
    return isinstance(own, int) and isinstance(value, int) and own > value


def _of_batch(config: RunConfig, sequences: int, context_tokens: int) -> list[str]:
    rows = example_rows(config)
    words = [f"batch.tokens_per_step={sequences * rows * context_tokens}", f"batch.micro_batch_sequences={rows}"]
    is_shorter = context_tokens != config.batch.context_tokens
    return [*words, f"batch.context_tokens={context_tokens}"] if is_shorter else words
