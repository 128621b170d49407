"""Static memory of training: weights, gradients and optimizer state, before activations."""

from dataclasses import dataclass
from typing import Final

from lmtrain.errors import ConfigurationError, suggest

# fp32 state tensors of one value per parameter that each optimizer keeps.
STATE_TENSORS: Final[dict[str, int]] = {"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "muon": 1, "adamw": 2}


@dataclass(frozen=True)
class StaticMemory:
    """Bytes that one device holds for the whole run, by kind."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Add the kinds up."""
        return self.weights + self.gradients + self.optimizer


def static_memory(
    num_parameters: int, *, optimizer: str, bytes_per_value: int = 4, extra_copy_bytes: int = 0, num_shards: int = 1
) -> StaticMemory:
    """Count the bytes a device holds of a model sharded over `num_shards`, rounded up.

    `bytes_per_value` is 4 with fp32 weights (autocast too), 2 where weights, gradients and state are all bf16;
    `extra_copy_bytes` is 2 where a bf16 copy of the weights is kept beside fp32 ones.
    Raises: ConfigurationError for an optimizer whose state is not known.
    """
    if optimizer not in STATE_TENSORS:
        raise ConfigurationError(
            f"optimizer={optimizer} has no known state; known: {', '.join(STATE_TENSORS)}."
            f"{suggest(optimizer, STATE_TENSORS)}"
        )
    held = -(-num_parameters // num_shards)
    return StaticMemory(
        weights=held * (bytes_per_value + extra_copy_bytes),
        gradients=held * bytes_per_value,
        optimizer=held * bytes_per_value * STATE_TENSORS[optimizer],
    )
