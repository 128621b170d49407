"""How much state an optimizer keeps for a parameter, next to the weight and its gradient."""

from dataclasses import dataclass
from typing import Final

BF16_BYTES: Final = 2
FP32_BYTES: Final = 4
STATE_PIECE_BYTES: Final = 256 * 1024**2  # of weights whose state is on a device at once, where the host keeps it
# Of whole matrices under work at once, where a rank works on all: 1.6 GB at 12 bytes of each; a GPU multiplies fewer as
# fast. All of a GPT-2 of 124M are one bucket.
MATRIX_BUCKET_VALUES: Final = 128 * 1024**2


@dataclass(frozen=True, kw_only=True)
class MatrixWork:
    """Bytes for the time of a step on whole hidden matrices, of each value: Muon's.

    `source_bytes` of a value as a rank holds it or gathers it, `product_bytes` of one under work where stacks of
    several shapes follow each other, `stack_bytes` where all are one stack, and `direction_bytes` of one sent. Ranks
    with copies or with slices of the first axis share the tensors out where `is_shared`; any other rank works on all,
    in buckets of `bucket_values`.
    """

    source_bytes: float
    product_bytes: float
    stack_bytes: float
    direction_bytes: float
    is_shared: bool = True
    bucket_values: int = MATRIX_BUCKET_VALUES

    def num_bytes(
        self,
        num_values: float,
        *,
        num_largest: int = 0,
        num_shards: int = 1,
        tensor_ranks: int = 1,
        num_copies: int = 1,
    ) -> float:
        """Return the most bytes at once on one rank; some rank works on the tensor of `num_largest` values."""
        if self.is_shared and tensor_ranks == 1 and max(num_shards, num_copies) > 1:
            if num_shards > 1:  # a share comes in slices, to be sent and as received beside the whole
                own, exchanged = num_values / num_shards, max(num_values / num_shards, num_largest)
                return self.source_bytes * (own + 3 * exchanged)
            worked = max(num_values / num_copies, num_largest)
            sent = self.direction_bytes * (num_values + 2 * worked)
            return self.source_bytes * num_values + max(self.product_bytes * worked, sent)
        bucket = min(num_values, max(self.bucket_values, num_largest))
        num_parts = num_shards * tensor_ranks
        gathered = bucket / num_parts if num_parts > 1 else 0
        at_work = min(self.product_bytes * num_values, self.stack_bytes * bucket)
        return self.source_bytes * (gathered + bucket) + at_work


@dataclass(frozen=True, kw_only=True)
class OptimizerState:
    """State values per parameter of a hidden matrix, of a table (embedding or head) and of a vector.

    `value_bytes` is the size of one, None the precision's; `vector_bytes` the size of a vector's. `per_edge` are values
    for each row and each column of matrices and tables; `bytes_per_long_edge` are for those along a hidden matrix's
    longer side. `step_bytes` of a hidden matrix's value are there for the time of a step alone, at most, next to
    those of a `matrix_work`, None of an optimizer that takes parts as they are.
    """

    per_matrix_value: float
    per_table_value: float
    per_vector_value: float
    per_edge: float = 0.0
    value_bytes: float | None = None
    vector_bytes: float | None = None
    bytes_per_long_edge: float = 0.0
    step_bytes: float = 0.0
    matrix_work: MatrixWork | None = None
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
