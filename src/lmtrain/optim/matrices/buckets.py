"""Cut a step's weights into buckets, worked on one after the other: gathered matrices and products of one at a time."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

Weight = TypeVar("Weight", bound=Tensor)


def buckets(weights: Sequence[Weight], *, num_values: int) -> list[list[Weight]]:
    """Return all weights as one bucket if they have at most so many values, else the weights of each shape in several.

    The buckets of a shape are full but for its last: a compiled update has two graphs a shape. A larger weight is one.
    """
    if sum(weight.numel() for weight in weights) <= num_values:
        return [[*weights]]
    alike: defaultdict[torch.Size, list[Weight]] = defaultdict(list)
    for weight in weights:
        alike[weight.shape].append(weight)
    found: list[list[Weight]] = []
    for shape, some in alike.items():
        num_each = max(1, num_values // shape.numel())
        found += [some[first : first + num_each] for first in range(0, len(some), num_each)]
    return found
