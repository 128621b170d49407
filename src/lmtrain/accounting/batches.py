"""How the tokens of one optimizer step divide into ranks, micro-steps and sequences.

tokens per step = micro-batch sequences x micro-steps x data-parallel ranks x context tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError

MICRO_BATCH: Final = "batch.micro_batch_sequences"  # the setting


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The batch as asked for; `micro_batch_sequences` None takes a rank's whole share of a step at once.

    `auto` is the largest that fits the device's memory. `left_out` are skipped batches, by their numbers from 0.
    """

    context_tokens: int
    tokens_per_step: int
    micro_batch_sequences: int | Literal["auto"] | None = None
    left_out: tuple[int, ...] = ()

    @property
    def is_auto(self) -> bool:
        """Return whether the micro-batch is still to be found by memory."""
        return self.micro_batch_sequences == "auto"

    @property
    def asked_sequences(self) -> int | None:
        """Return the number of sequences as asked for; None where it is to be found, or a rank's whole share."""
        return self.micro_batch_sequences if isinstance(self.micro_batch_sequences, int) else None


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The batch on a number of ranks; ranks of a tensor or context group, or of a pipeline, read the same tokens."""

    context_tokens: int
    sequences_per_micro_step: int
    accumulation_micro_steps: int
    num_ranks: int
    tensor_ranks: int = 1
    context_ranks: int = 1
    num_stages: int = 1
    left_out: tuple[int, ...] = ()  # rising

    def number_of(self, step: int) -> int:
        """Return the number of a step's batch in the run's order, both from 0, past the skipped ones."""
        number = step
        for each in self.left_out:
            if each > number:
                break
            number += 1
        return number

    def left_out_before(self, step: int) -> tuple[int, ...]:
        """Return the batches skipped before `step`."""
        last = self.number_of(step - 1) if step else -1
        return tuple(each for each in self.left_out if each < last)

    def without(self, numbers: Iterable[int]) -> "BatchPlan":
        """Return the plan with more skipped batches."""
        return replace(self, left_out=tuple(sorted({*self.left_out, *numbers})))

    @property
    def num_copies(self) -> int:
        """Count the neighbours that read the same tokens."""
        return self.tensor_ranks * self.context_ranks * self.num_stages

    @property
    def num_data_ranks(self) -> int:
        """Count the ranks, or groups of them, that read different tokens."""
        return self.num_ranks // self.num_copies

    def data_rank(self, rank: int) -> int:
        """Return whose tokens a rank reads, counted from 0."""
        return rank // self.num_copies

    @property
    def micro_batch_tokens(self) -> int:
        """Count the tokens of one rank's micro-batch."""
        return self.sequences_per_micro_step * self.context_tokens

    @property
    def sequences_per_rank(self) -> int:
        """Count one rank's sequences of a step."""
        return self.sequences_per_micro_step * self.accumulation_micro_steps

    def micro_batches(self, *, example_rows: int = 1) -> list[int]:
        """Return the micro-batches of whole examples that divide a rank's share of a step, the largest first."""
        total = self.sequences_per_rank
        return [size for size in range(total, 0, -1) if total % size == 0 and size % example_rows == 0]

    @property
    def sequences_per_step(self) -> int:
        """Count the sequences of one step over all ranks."""
        return self.sequences_per_rank * self.num_data_ranks

    @property
    def tokens_per_step(self) -> int:
        """Count the tokens of one step over all ranks."""
        return self.sequences_per_step * self.context_tokens


def plan_batches(
    batch: Batch, *, num_ranks: int = 1, tensor_ranks: int = 1, context_ranks: int = 1, num_stages: int = 1
) -> BatchPlan:
    """Divide a step over ranks and micro-steps; neighbours of a tensor or context group share each sequence.

    A micro-batch that is still to be found (`auto`) takes a rank's whole share of a step, as null does.

    Raises: ConfigurationError for a value below 1, and for an indivisible step or sequence.
    """
    asked = batch.asked_sequences
    sequences = 1 if asked is None else asked
    for key, value, least in (
        ("batch.context_tokens", batch.context_tokens, 1),
        (MICRO_BATCH, sequences, 1),
        ("trainer.devices x trainer.num_nodes", num_ranks, 1),
        ("batch.left_out", min(batch.left_out, default=0), 0),
    ):
        if value < least:
            raise ConfigurationError(f"{key}={value} is below {least}. Did you mean {least}?")
    num_data_ranks = num_ranks // (tensor_ranks * context_ranks * num_stages)
    if batch.context_tokens % (tensor_ranks * context_ranks):
        raise _unshared(batch, tensor_ranks, context_ranks, num_rows=sequences * max(1, num_data_ranks))
    unit = sequences * batch.context_tokens * num_data_ranks
    num_units, rest = divmod(batch.tokens_per_step, unit)
    if rest or num_units < 1:
        raise ConfigurationError(
            f"batch.tokens_per_step={batch.tokens_per_step} is not a multiple of {unit} "
            f"({format_count(sequences, 'sequence')} x {batch.context_tokens} tokens x "
            f"{format_count(num_data_ranks, 'rank')}). Did you mean {_nearest(batch.tokens_per_step, unit)}?"
        )
    return BatchPlan(
        context_tokens=batch.context_tokens,
        sequences_per_micro_step=num_units if asked is None else sequences,
        accumulation_micro_steps=1 if asked is None else num_units,
        num_ranks=num_ranks,
        tensor_ranks=tensor_ranks,
        context_ranks=context_ranks,
        num_stages=num_stages,
        left_out=tuple(sorted({*batch.left_out})),
    )


def _unshared(batch: Batch, tensor_ranks: int, context_ranks: int, *, num_rows: int) -> ConfigurationError:
    """Return the refusal of a sequence that groups cannot share, with the nearest that divides a step of rows too."""
    sizes = {"strategy.tensor_size": tensor_ranks, "strategy.context_size": context_ranks}
    sizes[" x ".join(sizes)] = tensor_ranks * context_ranks
    key, size = next((key, size) for key, size in sizes.items() if batch.context_tokens % size)
    context = _nearest(batch.context_tokens, tensor_ranks * context_ranks)
    of_step = _nearest(batch.tokens_per_step, num_rows * context)
    also = "" if of_step == batch.tokens_per_step else f" and batch.tokens_per_step={of_step}"
    return ConfigurationError(
        f"batch.context_tokens={batch.context_tokens} is not a multiple of {key}={size}. Did you mean "
        f"batch.context_tokens={context}{also}?"
    )


def _nearest(value: int, unit: int) -> int:
    return max(1, (value + unit // 2) // unit) * unit
