"""A value of each rank, on all of them; every rank calls this together."""

from typing import Any

import torch.distributed as dist


def on_all_ranks(value: Any) -> list[Any]:
    """Return each rank's value, by rank; without a process group this one's alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
