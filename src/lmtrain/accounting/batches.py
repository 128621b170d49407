"""How the tokens of one optimizer step divide into ranks, micro-steps and sequences.

tokens per step = micro-batch sequences x micro-steps x data-parallel ranks x context tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The batch as asked for; `micro_batch_sequences` None takes a rank's whole share of a step at once.

    `auto` is the largest within the device's memory, found once the model is known. `left_out` are batches of the run's
    order, a step's sequences each and counted from 0, without a step.
    """

    context_tokens: int
    tokens_per_step: int
    micro_batch_sequences: int | Literal["auto"] | None = None
    left_out: tuple[int, ...] = ()

    @property
    def is_auto(self) -> bool:
        """Tell whether the micro-batch is still to be found by memory."""
        return self.micro_batch_sequences == "auto"


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The same on a number of ranks; those of a tensor or context group, or of a pipeline, read the same tokens."""

    context_tokens: int
    micro_batch_sequences: int
    accumulation_micro_steps: int
    num_ranks: int
    tensor_ranks: int = 1
    context_ranks: int = 1
    num_stages: int = 1
    left_out: tuple[int, ...] = ()  # rising

    def number_of(self, step: int) -> int:
        """Return the number of a step's batch in the run's order, both from 0: those left out are passed over."""
        number = step
        for each in self.left_out:
            if each > number:
                break
            number += 1
        return number

    def left_out_before(self, step: int) -> tuple[int, ...]:
        """Return the batches left out of the first `step` steps."""
        last = self.number_of(step - 1) if step else -1
        return tuple(each for each in self.left_out if each < last)

    def without(self, numbers: Iterable[int]) -> "BatchPlan":
        """Return the plan with more batches left out."""
        return replace(self, left_out=tuple(sorted({*self.left_out, *numbers})))

    @property
    def num_copies(self) -> int:
        """Count the neighbours that read the same tokens, and report them, in every stage."""
        return self.tensor_ranks * self.context_ranks

    @property
    def num_data_ranks(self) -> int:
        """Count the ranks, or groups of them, with tokens of their own."""
        return self.num_ranks // (self.num_copies * self.num_stages)

    def data_rank(self, rank: int) -> int:
        """Return whose tokens a rank reads, counted from 0."""
        return rank // (self.num_copies * self.num_stages)

    @property
    def micro_batch_tokens(self) -> int:
        """Count the tokens of one rank's micro-batch."""
        return self.micro_batch_sequences * self.context_tokens

    @property
    def sequences_per_rank(self) -> int:
        """Count one rank's sequences of a step."""
        return self.micro_batch_sequences * self.accumulation_micro_steps

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
    whole_share = batch.micro_batch_sequences in (None, "auto")
    sequences = batch.micro_batch_sequences if isinstance(batch.micro_batch_sequences, int) else 1
    for key, value in (
        ("batch.context_tokens", batch.context_tokens),
        ("batch.micro_batch_sequences", sequences),
        ("trainer.devices x trainer.num_nodes", num_ranks),
    ):
        if value < 1:
            raise ConfigurationError(f"{key}={value} is below 1; nearest valid: 1.")
    for key, size in (("strategy.tensor_size", tensor_ranks), ("strategy.context_size", context_ranks)):
        if batch.context_tokens % size:
            raise ConfigurationError(
                f"batch.context_tokens={batch.context_tokens} is not a multiple of {key}={size}, whose ranks take "
                f"slices of a sequence; nearest valid: {_smaller(key, size, num_ranks, tokens=batch.context_tokens)}"
                f"batch.context_tokens={_nearest(batch.context_tokens, size)}."
            )
    if any(number < 0 for number in batch.left_out):
        raise ConfigurationError(
            f"batch.left_out={[*batch.left_out]} has a number below 0; nearest valid: 0, the first batch of the order."
        )
    num_data_ranks = num_ranks // (tensor_ranks * context_ranks * num_stages)
    unit = sequences * batch.context_tokens * num_data_ranks
    num_units, rest = divmod(batch.tokens_per_step, unit)
    if rest or num_units < 1:
        raise ConfigurationError(_does_not_divide(batch, sequences, num_data_ranks, unit))
    return BatchPlan(
        context_tokens=batch.context_tokens,
        micro_batch_sequences=num_units if whole_share else sequences,
        accumulation_micro_steps=1 if whole_share else num_units,
        num_ranks=num_ranks,
        tensor_ranks=tensor_ranks,
        context_ranks=context_ranks,
        num_stages=num_stages,
        left_out=tuple(sorted({*batch.left_out})),
    )


def _nearest(value: int, unit: int) -> int:
    return max(1, (value + unit // 2) // unit) * unit


def _smaller(key: str, size: int, num_ranks: int, *, tokens: int) -> str:
    """Name a smaller group first, of these ranks or else of its own alone: heads may allow no other."""
    sizes = [smaller for smaller in range(2, size) if tokens % smaller == 0]
    of_these = [smaller for smaller in sizes if num_ranks % smaller == 0]
    if of_these:
        return f"{key}={of_these[-1]}, or "
    return f"{key}={sizes[-1]} trainer.devices={sizes[-1]}, or " if sizes else ""


def _does_not_divide(batch: Batch, sequences: int, num_ranks: int, unit: int) -> str:
    nearest = _nearest(batch.tokens_per_step, unit)
    most_ranks = batch.tokens_per_step // (sequences * batch.context_tokens)
    is_whole = batch.tokens_per_step % (sequences * batch.context_tokens) == 0  # else no number of ranks divides it
    fewer = f", or at most {format_count(most_ranks, 'rank')}" if is_whole and 0 < most_ranks < num_ranks else ""
    binary = _binary(batch.tokens_per_step, unit, nearest)
    rule = "is not a multiple of" if batch.tokens_per_step > 0 else "is below one step's least,"
    return (
        f"batch.tokens_per_step={batch.tokens_per_step} {rule} {unit} "
        f"({format_count(sequences, 'sequence')} x {batch.context_tokens} tokens x "
        f"{format_count(num_ranks, 'rank')}); nearest valid: {nearest}{binary}{fewer}."
    )


def _binary(value: int, unit: int, nearest: int) -> str:
    """Return the amount that 4M or 512K may have meant, 4Mi or 512Ki, where it divides and is not the nearest."""
    if value < 10_000:
        return ""  # such a number is seldom an amount of K
    for letter, decimal, power in (("M", 10**6, 2**20), ("K", 10**3, 2**10)):
        number, rest = divmod(value, decimal)
        if not rest and number * power % unit == 0 and number * power != nearest:
            return f", or {number}{letter}i ({number * power})"
    return ""
