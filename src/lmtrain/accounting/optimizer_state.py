"""How many values of state each optimizer keeps for a parameter, beside the weight and its gradient."""

from dataclasses import dataclass
from typing import Final

from lmtrain.errors import ConfigurationError, suggest


@dataclass(frozen=True, kw_only=True)
class OptimizerState:
    """State values per parameter of a hidden matrix, and of any other tensor.

    `value_bytes` None is the precision's. Adafactor (arXiv 1804.04235) keeps a row and a column for a matrix, which is
    next to nothing, and a whole second moment for a vector.
    """

    per_matrix_value: float
    per_other_value: float
    value_bytes: int | None = None


def _alike(num_values: float, value_bytes: int | None = None) -> OptimizerState:
    return OptimizerState(per_matrix_value=num_values, per_other_value=num_values, value_bytes=value_bytes)


STATES: Final[dict[str, OptimizerState]] = {
    "sgd": _alike(0),
    "momentum": _alike(1),
    "adagrad": _alike(1),
    "rmsprop": _alike(1),
    "lion": _alike(1),
    "adafactor": OptimizerState(per_matrix_value=0, per_other_value=1),
    "adamw": _alike(2),
    "adamw_8bit": _alike(2, value_bytes=1),
    "schedule_free_adamw": _alike(2),
    "muon": OptimizerState(per_matrix_value=1, per_other_value=2),
}


def optimizer_state(name: str) -> OptimizerState:
    """Return what an optimizer keeps, by its configuration's name.

    Raises: ConfigurationError for a name that is not known.
    """
    if name not in STATES:
        raise ConfigurationError(
            f"optimizer={name} has no known state; known: {', '.join(STATES)}.{suggest(name, STATES)}"
        )
    return STATES[name]
