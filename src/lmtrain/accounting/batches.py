"""How the tokens of one optimizer step divide into ranks, micro-steps and sequences.

tokens per step = micro-batch sequences x micro-steps x data-parallel ranks x context tokens.
"""

from dataclasses import dataclass
from typing import Literal

from lmtrain.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The batch as asked for; `micro_batch_sequences` None takes a rank's whole share of a step at once.

    `auto` is the largest within the device's memory, found once the model is known.
    """

    context_tokens: int
    tokens_per_step: int
    micro_batch_sequences: int | Literal["auto"] | None = None


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The same on a number of ranks."""

    context_tokens: int
    micro_batch_sequences: int
    accumulation_micro_steps: int
    num_ranks: int

    @property
    def sequences_per_rank(self) -> int:
        """Count one rank's sequences of a step."""
        return self.micro_batch_sequences * self.accumulation_micro_steps

    @property
    def sequences_per_step(self) -> int:
        """Count the sequences of one step over all ranks."""
        return self.sequences_per_rank * self.num_ranks

    @property
    def tokens_per_step(self) -> int:
        """Count the tokens of one step over all ranks."""
        return self.sequences_per_step * self.context_tokens


def plan_batches(batch: Batch, *, num_ranks: int = 1) -> BatchPlan:
    """Divide a step over ranks and micro-steps.

    Raises: ConfigurationError for a value below 1, and for an indivisible step.
    """
    assert batch.micro_batch_sequences != "auto", "composition has found the number by now"
    sequences = 1 if batch.micro_batch_sequences is None else batch.micro_batch_sequences
    for key, value in (
        ("batch.context_tokens", batch.context_tokens),
        ("batch.micro_batch_sequences", sequences),
        ("batch.tokens_per_step", batch.tokens_per_step),
        ("trainer.devices x trainer.num_nodes", num_ranks),
    ):
        if value < 1:
            raise ConfigurationError(f"{key}={value} is below 1; nearest valid: 1.")
    unit = sequences * batch.context_tokens * num_ranks
    num_units, rest = divmod(batch.tokens_per_step, unit)
    if rest:
        raise ConfigurationError(_does_not_divide(batch, sequences, num_ranks, unit))
    whole_share = batch.micro_batch_sequences is None
    return BatchPlan(
        context_tokens=batch.context_tokens,
        micro_batch_sequences=num_units if whole_share else sequences,
        accumulation_micro_steps=1 if whole_share else num_units,
        num_ranks=num_ranks,
    )


def _does_not_divide(batch: Batch, sequences: int, num_ranks: int, unit: int) -> str:
    nearest = max(1, (batch.tokens_per_step + unit // 2) // unit) * unit
    return (
        f"batch.tokens_per_step={batch.tokens_per_step} is not a multiple of {unit} "
        f"({sequences} sequence{'s' * (sequences != 1)} x {batch.context_tokens} tokens x "
        f"{num_ranks} rank{'s' * (num_ranks != 1)}); nearest valid: {nearest}."
    )
