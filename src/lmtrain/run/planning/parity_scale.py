"""The two trainings of `lmtrain parity`, and their differences from the config, in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.options.parts import CompileFacts, RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.planning.free_memory import available_bytes
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.objective import example_rows

# Weight, gradient, two moments, and the tensors written and read beside them.
BYTES_OF_PARAMETER: Final = 4 * 7
MOST_FLOPS: Final = 4e12  # of both trainings: minutes on a few cores
MOST_SHARE: Final = 0.6  # of the free memory
FEWEST_LAYERS, FEWEST_TOKENS = 2, 64
# Settings under which the rounding of fp32 stays small: steps of Adam and Muon enlarge that of gradients near zero.
STEADY: Final = {"eps": 1e-4, "iteration_dtype": "fp32"}
SIZES: Final = ("width", "num_heads", "num_kv_heads", "feed_forward_width", "depth")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One process's config and the ranks', with the differences of both from the words asked for."""

    alone: RunConfig
    together: RunConfig
    changed: tuple[str, ...]


def pair_of(config: RunConfig, *, num_steps: int) -> Pair:
    """Make a config of ranks fit for this machine, and one process's of the same micro-batches, eager and plain.

    Raises:
        ConfigurationError: The strategy is not one process's by design.
        EnvironmentProblem: Not even the smallest model fits.
    """
    require_comparable(config)
    steady = _steady(config)
    fitted, words = _fitted(steady.together, num_steps=num_steps)
    micro = fitted.divided(fitted.batch).micro_batch_sequences
    fitted = with_words(fitted, [f"batch.micro_batch_sequences={micro}"])
    alone = with_words(fitted, [*_plain_words(), "trainer.devices=1"])
    return Pair(alone=alone, together=fitted, changed=(*steady.changed, *words))


def _plain_words() -> list[str]:
    """Return the words of one device without compilation and recomputation."""
    return [
        words_of(ModelSpread, lambda spread: spread.most_ranks == 1)[0],
        words_of(CompileFacts, lambda compilation: not compilation.compiles)[0],
        words_of(RecomputeFacts, lambda recompute: recompute.keeps_all)[0],
    ]


def require_comparable(config: RunConfig) -> None:
    """Refuse a strategy yet to be chosen, and one whose ranks learn other than one process does.

    Raises:
        ConfigurationError: Naming the change.
    """
    word = config.strategy.word
    if config.spread.chooses and config.cluster.known_device:
        raise ConfigurationError(
            f"strategy={word} chooses by the memory of {config.cluster.device}; type the strategy that lmtrain plan "
            f"names, {_comparable()}."
        )
    if not config.spread.equals_one_process:
        raise ConfigurationError(
            f"strategy={word} is not equal to one process by design: its ranks step by their own gradients and meet "
            f"later; compare its losses after training (lmtrain compare), or {_comparable()}."
        )


def _comparable() -> str:
    found = words_of(ModelSpread, lambda spread: spread.equals_one_process and spread.takes_many)
    chosen = words_of(ModelSpread, lambda spread: spread.chooses)
    return one_of([word for word in found if word not in chosen])


def _steady(config: RunConfig) -> Pair:
    """Keep rounding small, and say so."""
    own = config.optimizer.values
    changes = {key: value for key, value in STEADY.items() if key in own and _is_unsteady(own[key], value)}
    words = [f"optimizer.{key}={value}" for key, value in changes.items()]
    changed = config.changed(optimizer={**own, **changes}, callbacks={}, optimizer_cpu_offload=False)
    if changed.batch.micro_batch_sequences == "auto":
        least = f"batch.micro_batch_sequences={example_rows(config)}"
        changed = with_words(changed, [least])
        words.append(least)
    return Pair(alone=changed, together=changed, changed=tuple(words))


def _is_unsteady(own: Any, steady: Any) -> bool:
    return own < steady if isinstance(steady, float) and isinstance(own, float) else own != steady


def _fitted(config: RunConfig, *, num_steps: int) -> tuple[RunConfig, list[str]]:
    """Return the largest of ever smaller configs within this machine's memory and minutes, and its words."""
    free = available_bytes()
    last = ""
    for words in _smaller(config):
        try:
            smaller = with_words(config, words)
            obstacle = _obstacle(smaller, num_steps=num_steps, free_bytes=free)
        except ConfigurationError:
            if not words:
                raise
            continue  # a size that goes with another
        if obstacle is None:
            return smaller, words
        last = obstacle
    raise EnvironmentProblem(f"parity: {last}; make it smaller with words of its own, as model.num_layers=2.")


def _obstacle(config: RunConfig, *, num_steps: int, free_bytes: int | None) -> str | None:
    """Name the parts too large, None without one."""
    batch = config.divided(config.batch)
    with torch.device("meta"):
        shape = config.model.build().shape()
    num_bytes = shape.num_parameters * BYTES_OF_PARAMETER * (config.num_ranks + 1)
    if free_bytes is not None and num_bytes > MOST_SHARE * free_bytes:
        needed, free = (f"{one / 1e9:.1f} GB" for one in (num_bytes, free_bytes))
        return (
            f"the model takes {needed} on {format_count(config.num_ranks, 'rank')} and one process, and {free} are free"
        )
    flops = flops_per_token(shape, batch.context_tokens).palm * batch.tokens_per_step * num_steps * 2
    if flops > MOST_FLOPS:
        steps = format_count(num_steps, "step")
        return f"{steps} twice take {format_quantity(flops)}FLOPs, above {format_quantity(MOST_FLOPS)}FLOPs"
    return None


def _smaller(config: RunConfig) -> Iterator[list[str]]:
    """Give words for ever smaller trainings: fewest sequences, few layers and ids, then half the width or context."""
    yield []
    divided, model = config.divided(config.batch), config.model.values
    sequences = divided.num_data_ranks * min(2, divided.accumulation_micro_steps)
    context = config.batch.context_tokens
    few = _few_layers_and_ids(config)
    sizes = {key: model[key] for key in SIZES if isinstance(model.get(key), int)}
    yield _of_batch(config, sequences, context)
    while True:
        halved = [f"model.{key}={size}" for key, size in sizes.items() if size != model[key]]
        yield [*_of_batch(config, sequences, context), *few, *halved]
        if sizes and all(size % 2 == 0 for size in sizes.values()):
            sizes = {key: size // 2 for key, size in sizes.items()}
        elif context >= 2 * FEWEST_TOKENS:
            context //= 2
        else:
            return


def _of_batch(config: RunConfig, sequences: int, context_tokens: int) -> list[str]:
    rows = example_rows(config)
    words = [f"batch.tokens_per_step={sequences * rows * context_tokens}", f"batch.micro_batch_sequences={rows}"]
    is_shorter = context_tokens != config.batch.context_tokens
    return [*words, f"batch.context_tokens={context_tokens}"] if is_shorter else words


def _few_layers_and_ids(config: RunConfig) -> list[str]:
    """Return words for two layers, and for the tokenizer's own ids where the model has more."""
    model, known = config.model.values, config.tokenizer.values.get("vocab_size")
    least = {"num_layers": FEWEST_LAYERS, "vocab_size": known}
    return [
        f"model.{key}={value}"
        for key, value in least.items()
        if isinstance(value, int) and isinstance(model.get(key), int) and model[key] > value
    ]
