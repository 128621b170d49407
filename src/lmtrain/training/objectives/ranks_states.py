"""An objective's state of all ranks in one checkpoint."""

from collections.abc import Sequence
from typing import Any

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError


def of_rank(states: Sequence[dict[str, Any]], rank: int, num_ranks: int) -> dict[str, Any]:
    """Return a rank's own state.

    Raises:
        ConfigurationError: They are of another number of ranks.
    """
    if len(states) != num_ranks:
        raise ConfigurationError(
            f"the checkpoint lies between steps that learn from the same answers, written on "
            f"{format_count(len(states), 'rank')}, and this run has {num_ranks}; go on with as many, "
            "or resume from a step that writes its own."
        )
    return states[rank]
