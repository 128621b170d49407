"""Deal matrices out to ranks: each is worked on once among them all instead of once on each.

A sharing gathers the whole matrices of this rank's share, and spreads the results to the holders of their parts. Every
rank calls both, with the same tensors in the same order. One collective call each, for any number of matrices and
shapes; nothing waits for the device.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Protocol, final

import torch
from torch import Tensor, distributed  # noqa: TID251
from torch.distributed import ProcessGroup  # noqa: TID251

from lmtrain.optim.sharded import Place, part_of, whole

Whole = dict[int, Tensor]  # by the position of the tensor it belongs to


def deal(costs: Sequence[float], num_ranks: int) -> list[int]:
    """Return the rank of each piece of work: the largest first, to the rank with least so far."""
    loads = [0.0] * num_ranks
    owners = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owners[i] = min(range(num_ranks), key=loads.__getitem__)
        loads[owners[i]] += costs[i]
    return owners


class Sharing(Protocol):
    """How tensors alike in place are worked on."""

    def gather(self, parts: Sequence[Tensor]) -> Whole:
        """Return the whole tensors of this rank's share, from every rank's part of all."""
        ...

    def spread(self, done: Whole, *, dtype: torch.dtype) -> list[Tensor]:
        """Return this rank's part of every tensor, from the whole ones of every rank's share."""
        ...

    def publish(self, facts: Whole, *, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return small float32 facts of every tensor, whole, from those of every rank's share."""
        ...

    def part(self, fact: Tensor, i: int) -> Tensor:
        """Cut this rank's part of tensor `i` out of a whole fact."""
        ...


def share(parameters: Sequence[Tensor], place: Place) -> Sharing:
    """Return how these tensors, all in one place, are worked on."""
    if place.ranks is None:
        return Alone(parameters)
    return Slices(parameters, place.ranks) if place.is_sliced else Copies(parameters, place.ranks)


@final
class Alone:
    """Each rank works on every tensor; one sharded in an unusual way is gathered and cut again."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters

    def gather(self, parts: Sequence[Tensor]) -> Whole:
        """Gather all of them, where they are parts."""
        return {i: whole(part, self._parameters[i]) for i, part in enumerate(parts)}

    def spread(self, done: Whole, *, dtype: torch.dtype) -> list[Tensor]:
        """Cut this rank's part of each, where it has but a part."""
        return [part_of(done[i].to(dtype), parameter) for i, parameter in enumerate(self._parameters)]

    def publish(self, facts: Whole, *, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return them as they are."""
        return [facts[i] for i in range(len(shapes))]

    def part(self, fact: Tensor, i: int) -> Tensor:
        """Spell the fact out over the whole tensor and cut it like that."""
        like = self._parameters[i]
        return part_of(fact.expand(like.shape).contiguous(), like) if hasattr(like, "placements") else fact


@final
class Copies:
    """Each rank has every tensor whole, works on its share, and sends the results to all."""

    def __init__(self, parameters: Sequence[Tensor], ranks: ProcessGroup) -> None:
        self._shapes = [parameter.shape for parameter in parameters]
        self._dealt = Dealt(parameters, ranks)

    def gather(self, parts: Sequence[Tensor]) -> Whole:
        """Pick this rank's share: they are whole."""
        return {i: parts[i] for i in self._dealt.mine}

    def spread(self, done: Whole, *, dtype: torch.dtype) -> list[Tensor]:
        """Send whole tensors to every rank."""
        return self._dealt.to_all(done, shapes=self._shapes, dtype=dtype)

    def publish(self, facts: Whole, *, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Send the facts to every rank."""
        return self._dealt.to_all(facts, shapes=shapes, dtype=torch.float32)

    def part(self, fact: Tensor, i: int) -> Tensor:
        """Return all of it."""
        del i
        return fact


@final
class Slices:
    """Each rank holds slices of every tensor's first axis; those of one tensor meet on its working rank."""

    def __init__(self, parameters: Sequence[Tensor], ranks: ProcessGroup) -> None:
        self._shapes = [parameter.shape for parameter in parameters]
        self._dealt = Dealt(parameters, ranks)
        self._device = parameters[0].device

    def gather(self, parts: Sequence[Tensor]) -> Whole:
        """Send each slice to its tensor's rank."""
        dealt = self._dealt
        sent = [[parts[i] for i in dealt.of(rank)] for rank in range(dealt.num_ranks)]
        expected = [[self._slice_shape(i, rank) for i in dealt.mine] for rank in range(dealt.num_ranks)]
        received = self._exchange(sent, expected, dtype=parts[0].dtype)
        return {i: torch.cat([of_rank[n] for of_rank in received]) for n, i in enumerate(dealt.mine)}

    def spread(self, done: Whole, *, dtype: torch.dtype) -> list[Tensor]:
        """Send each rank its slices."""
        dealt = self._dealt
        sent = [[self._slice(done[i], i, rank) for i in dealt.mine] for rank in range(dealt.num_ranks)]
        expected = [[self._slice_shape(i, dealt.rank) for i in dealt.of(rank)] for rank in range(dealt.num_ranks)]
        received = self._exchange(sent, expected, dtype=dtype)
        by_tensor = {i: received[rank][n] for rank in range(dealt.num_ranks) for n, i in enumerate(dealt.of(rank))}
        return [by_tensor[i] for i in range(len(self._shapes))]

    def publish(self, facts: Whole, *, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Send the facts to every rank."""
        return self._dealt.to_all(facts, shapes=shapes, dtype=torch.float32)

    def part(self, fact: Tensor, i: int) -> Tensor:
        """Cut the fact like the tensor, unless it is about the other axis."""
        return self._slice(fact, i, self._dealt.rank) if fact.shape[0] == self._shapes[i][0] else fact

    def _bounds(self, i: int, rank: int) -> tuple[int, int]:
        num_rows = self._shapes[i][0]
        rows_each = -(-num_rows // self._dealt.num_ranks)  # as torch.chunk: the last ones may be short or empty
        return min(num_rows, rank * rows_each), min(num_rows, (rank + 1) * rows_each)

    def _slice(self, tensor: Tensor, i: int, rank: int) -> Tensor:
        first, end = self._bounds(i, rank)
        return tensor[first:end]

    def _slice_shape(self, i: int, rank: int) -> tuple[int, ...]:
        first, end = self._bounds(i, rank)
        return (end - first, *self._shapes[i][1:])

    def _exchange(
        self, sent: list[list[Tensor]], expected: list[list[tuple[int, ...]]], *, dtype: torch.dtype
    ) -> list[list[Tensor]]:
        """Send a list of tensors to each rank, and return each rank's list."""
        flat = [tensor.flatten().to(dtype) for tensors in sent for tensor in tensors]
        sizes_sent = [sum(tensor.numel() for tensor in tensors) for tensors in sent]
        sizes = [sum(map(prod, shapes)) for shapes in expected]
        received = torch.empty(sum(sizes), dtype=dtype, device=self._device)
        buffer = torch.cat(flat) if flat else received.new_empty(0)
        distributed.all_to_all_single(received, buffer, sizes, sizes_sent, group=self._dealt.ranks)
        return [_unpack(part, shapes) for part, shapes in zip(received.split(sizes), expected, strict=True)]


@final
class Dealt:
    """The ranks' tensors to work on; a product of a matrix with itself costs its size times its short side."""

    def __init__(self, parameters: Sequence[Tensor], ranks: ProcessGroup) -> None:
        self.ranks, self.num_ranks, self.rank = ranks, ranks.size(), ranks.rank()
        self._owners = deal([parameter.numel() * min(parameter.shape[-2:]) for parameter in parameters], self.num_ranks)
        self._device = parameters[0].device
        self.mine = self.of(self.rank)

    def of(self, rank: int) -> list[int]:
        """Return the positions of a rank's share."""
        return [i for i, owner in enumerate(self._owners) if owner == rank]

    def to_all(
        self, done: Mapping[int, Tensor], *, shapes: Sequence[Sequence[int]], dtype: torch.dtype
    ) -> list[Tensor]:
        """Give every rank the tensors of all shares: one all-gather, of the largest share's size a rank."""
        sizes = [sum(prod(shapes[i]) for i in self.of(rank)) for rank in range(self.num_ranks)]
        buffer = torch.zeros(max(sizes), dtype=dtype, device=self._device)
        if self.mine:
            torch.cat([done[i].flatten().to(dtype) for i in self.mine], out=buffer[: sizes[self.rank]])
        gathered = buffer.new_empty(self.num_ranks, max(sizes))
        distributed.all_gather(list(gathered.unbind()), buffer, group=self.ranks)
        found: Whole = {}
        for rank in range(self.num_ranks):
            of_rank = self.of(rank)
            found |= zip(of_rank, _unpack(gathered[rank], [shapes[i] for i in of_rank]), strict=True)
        return [found[i] for i in range(len(shapes))]


def _unpack(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    ends = list(accumulate(map(prod, shapes)))
    return [flat[end - prod(shape) : end].view(*shape) for shape, end in zip(shapes, ends, strict=True)]
