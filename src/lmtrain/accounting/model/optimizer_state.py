"""How much state each optimizer keeps for a parameter, beside the weight and its gradient."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lmtrain.errors import ConfigurationError, suggest

BF16_BYTES: Final = 2
FP32_BYTES: Final = 4
BLOCK_VALUES: Final = 256  # of 8-bit state that share one fp32 scale


@dataclass(frozen=True, kw_only=True)
class OptimizerState:
    """State values per parameter of a hidden matrix, of a table (embedding or head) and of a vector.

    `value_bytes` is the size of one, None the precision's; `vector_bytes` that of a vector's. `per_edge` are values for
    each row and each column of matrices and tables; `bytes_per_long_edge` are for those along a hidden matrix's longer
    side.
    """

    per_matrix_value: float
    per_table_value: float
    per_vector_value: float
    per_edge: float = 0.0
    value_bytes: float | None = None
    vector_bytes: float | None = None
    bytes_per_long_edge: float = 0.0
    average_bytes: int = 0  # of a moving average of each weight, kept beside the optimizer's own state


def _alike(num_values: float) -> OptimizerState:
    return OptimizerState(per_matrix_value=num_values, per_table_value=num_values, per_vector_value=num_values)


STATES: Final[dict[str, OptimizerState]] = {
    "sgd": _alike(0),
    "momentum": _alike(1),
    "adagrad": _alike(1),
    "rmsprop": _alike(1),
    "lion": _alike(1),
    # arXiv 1804.04235: a row and a column of the second moment, and all of it for a vector.
    "adafactor": OptimizerState(per_matrix_value=0, per_table_value=0, per_vector_value=1, per_edge=1),
    "adamw": _alike(2),
    # arXiv 2110.02861; vectors are too short to be worth it, and stay as they are.
    "adamw_8bit": replace(_alike(2), value_bytes=1 + FP32_BYTES / BLOCK_VALUES),
    "schedule_free": _alike(2),
    "muon": OptimizerState(per_matrix_value=1, per_table_value=2, per_vector_value=2),
}


def optimizer_state(name: str, settings: Mapping[str, Any] | None = None) -> OptimizerState:
    """Return what an optimizer keeps, by its configuration's name and those of its settings that matter.

    Raises: ConfigurationError for a name that is not known.
    """
    if name not in STATES:
        raise ConfigurationError(
            f"optimizer={name} has no known state; known: {', '.join(STATES)}.{suggest(name, STATES)}"
        )
    state, settings = STATES[name], settings or {}
    if settings.get("moments") == "bf16":
        state = replace(state, value_bytes=BF16_BYTES, vector_bytes=BF16_BYTES)
    if settings.get("row_beta") is not None:  # sizes of rows, whatever the format of the weights
        state = replace(state, bytes_per_long_edge=FP32_BYTES)
    return state
