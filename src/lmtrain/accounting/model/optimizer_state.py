"""How much state an optimizer keeps for a parameter, beside the weight and its gradient."""

from dataclasses import dataclass
from typing import Final

BF16_BYTES: Final = 2
FP32_BYTES: Final = 4
BLOCK_VALUES: Final = 256  # of 8-bit state to one fp32 scale
STATE_PIECE_BYTES: Final = 256 * 1024**2  # of weights whose state is on a device at once, where the host keeps it


@dataclass(frozen=True, kw_only=True)
class OptimizerState:
    """State values per parameter of a hidden matrix, of a table (embedding or head) and of a vector.

    `value_bytes` is the size of one, None the precision's; `vector_bytes` the size of a vector's. `per_edge` are values
    for each row and each column of matrices and tables; `bytes_per_long_edge` are for those along a hidden matrix's
    longer side. `step_bytes` of a hidden matrix's value are there for the time of a step alone, at most.
    """

    per_matrix_value: float
    per_table_value: float
    per_vector_value: float
    per_edge: float = 0.0
    value_bytes: float | None = None
    vector_bytes: float | None = None
    bytes_per_long_edge: float = 0.0
    step_bytes: float = 0.0
    average_bytes: int = 0  # of averages of each weight, kept beside the optimizer's own state


def alike(num_values: float, *, value_bytes: float | None = None, vector_bytes: float | None = None) -> OptimizerState:
    """Return the state of an optimizer with as many values for every parameter."""
    return OptimizerState(
        per_matrix_value=num_values,
        per_table_value=num_values,
        per_vector_value=num_values,
        value_bytes=value_bytes,
        vector_bytes=vector_bytes,
    )
