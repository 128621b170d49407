"""Pipeline stages, for plans: the idle share of a step, and the memory of the fullest stage, by schedule.

Source: arXiv 2104.04473 section 2.2. Layers are spread evenly over stages.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from lmtrain.errors import ConfigurationError

Schedule = Literal["gpipe", "1f1b"]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Neighbouring ranks with a stage of the layers each; a single stage is no pipeline.

    `num_chunks` are the parts of a rank's layers, with a micro-batch's visits to the others in between (interleaved
    1F1B).
    GPipe makes every forward pass of a step before its first backward pass.

    Raises:
        ConfigurationError: Another schedule, no chunk, or chunks of GPipe.
    """

    num_stages: int = 1
    num_chunks: int = 1
    schedule: Schedule = "1f1b"

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Schedule):
            valid = " or ".join(get_args(Schedule))
            raise ConfigurationError(f"strategy.schedule={self.schedule} is not known; valid: {valid}.")
        if self.num_chunks < 1 or (self._fills_first and self.num_chunks > 1):
            raise ConfigurationError(
                f"strategy.num_chunks={self.num_chunks} is below 1, or of a schedule without chunks "
                f"(strategy.schedule={self.schedule}); nearest valid: 1."
            )

    @property
    def _fills_first(self) -> bool:
        return self.schedule == "gpipe"

    def require_layers(self, num_layers: int) -> None:
        """Refuse more parts than layers.

        Raises:
            ConfigurationError: With the nearest number.
        """
        most = max(1, num_layers // self.num_chunks)
        if self.num_stages > 1 and self.num_stages * self.num_chunks > num_layers:
            raise ConfigurationError(
                f"strategy.num_stages={self.num_stages} x strategy.num_chunks={self.num_chunks} are more parts than "
                f"the model's {num_layers} layers; nearest valid: strategy.num_stages={most}."
            )

    def bubble_share(self, num_micro_steps: int) -> float:
        """Return a stage's share of waiting in a step: (P - 1) / (m v + P - 1)."""
        waits = self.num_stages - 1
        return waits / (num_micro_steps * self.num_chunks + waits)

    def kept_share(self, num_micro_steps: int, *, stage: int = 0) -> float:
        """Return a stage's activations at most, counted from 0, in those of one micro-batch of the whole model."""
        stages, chunks, later = self.num_stages, self.num_chunks, self.num_stages - 1 - stage
        in_flight = stages + (2 * later + 1 - stages) / chunks if chunks > 1 else later + 1
        return (num_micro_steps if self._fills_first else min(in_flight, num_micro_steps)) / stages

    def held_share(self, *, num_total: int, num_outside_blocks: int, num_at_end: int) -> float:
        """Return the share of parameters of a stage with `num_at_end` of those outside the blocks."""
        if self.num_stages == 1:
            return 1.0
        return ((num_total - num_outside_blocks) / self.num_stages + num_at_end) / num_total


ONE_STAGE: Final = Pipeline()
