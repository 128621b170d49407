"""Deal matrices out to ranks: each is worked on once among them all instead of once on each.

A sharing gathers the whole matrices of this rank's share, and spreads the results to the holders of their parts. Every
rank calls both, with the same tensors in the same order. One collective call each, for any number of matrices and
shapes; nothing waits for the device.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any, final

import torch
from torch import Tensor, distributed  # noqa: TID251
from torch.distributed import ProcessGroup  # noqa: TID251
from typing_extensions import override

from lmtrain.optim.sharded import Place, part_of, whole

# Under its newer name from torch 2.13 on, where the older one warns.
gather_one: Any = vars(distributed).get("all_gather_single") or vars(distributed)["all_gather_into_tensor"]
Whole = dict[int, Tensor]  # by the position of the tensor it belongs to


def deal(costs: Sequence[float], num_ranks: int) -> list[int]:
    """Return the rank of each piece of work: the largest first, to the rank with least so far."""
    loads = [0.0] * num_ranks
    owners = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owners[i] = min(range(num_ranks), key=loads.__getitem__)
        loads[owners[i]] += costs[i]
    return owners


def share(parameters: Sequence[Tensor], place: Place) -> "Sharing":
    """Return how these tensors, all in one place, are worked on.

    `gather` returns the whole tensors of this rank's share, from every rank's part of all; `spread` this rank's part of
    every tensor, from the whole ones of every rank's share; `publish` small float32 facts of every tensor, from those
    of every rank's share; `part` cuts this rank's part of a tensor out of such a fact.
    """
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
class Slices(Copies):
    """Each rank holds slices of every tensor's first axis; those of one tensor meet on its working rank."""

    @override
    def gather(self, parts: Sequence[Tensor]) -> Whole:
        """Send each slice to its tensor's rank."""
        mine, shares = self._dealt.mine, self._dealt.shares
        buffer = self._joined([parts[i] for share in shares.values() for i in share], dtype=parts[0].dtype)
        sent = {rank: sum(parts[i].numel() for i in share) for rank, share in shares.items()}
        sizes = self._sizes_of_mine()
        received = self._exchange(buffer, sent=self._of_all(sent), expected=sizes)
        if len(mine) <= 1:  # the slices of one tensor come in its own order
            return {i: received.view(self._shapes[i]) for i in mine}
        of_ranks = [
            _unpack(part, [self._slice_shape(i, rank) for i in mine]) for rank, part in enumerate(received.split(sizes))
        ]
        return {i: torch.cat([of_rank[n] for of_rank in of_ranks]) for n, i in enumerate(mine)}

    @override
    def spread(self, done: Whole, *, dtype: torch.dtype) -> list[Tensor]:
        """Send each rank its slices."""
        mine, shares, rank = self._dealt.mine, self._dealt.shares, self._dealt.rank
        slices = [done[i] for i in mine]  # one tensor holds its slices in the ranks' order
        if len(mine) > 1:
            slices = [self._slice(done[i], i, other) for other in range(self._dealt.num_ranks) for i in mine]
        own = {other: [self._slice_shape(i, rank) for i in share] for other, share in shares.items()}
        expected = self._of_all({other: sum(map(prod, shapes)) for other, shapes in own.items()})
        buffer = self._joined(slices, dtype=dtype)
        received = self._exchange(buffer, sent=self._sizes_of_mine(), expected=expected)
        unpacked = _unpack(received, [shape for shapes in own.values() for shape in shapes])
        by_tensor = dict(zip((i for share in shares.values() for i in share), unpacked, strict=True))
        return [by_tensor[i] for i in range(len(self._shapes))]

    @override
    def part(self, fact: Tensor, i: int) -> Tensor:
        """Cut the fact like the tensor, unless it is about the other axis."""
        return self._slice(fact, i, self._dealt.rank) if fact.shape[0] == self._shapes[i][0] else fact

    def _bounds(self, num_rows: int, rank: int) -> tuple[int, int]:
        rows_each = -(-num_rows // self._dealt.num_ranks)  # as torch.chunk: the last ones may be short or empty
        return min(num_rows, rank * rows_each), min(num_rows, (rank + 1) * rows_each)

    def _num_rows(self, num_rows: int, rank: int) -> int:
        first, end = self._bounds(num_rows, rank)
        return end - first

    def _slice(self, tensor: Tensor, i: int, rank: int) -> Tensor:
        first, end = self._bounds(self._shapes[i][0], rank)
        return tensor[first:end]

    def _slice_shape(self, i: int, rank: int) -> tuple[int, ...]:
        return (self._num_rows(self._shapes[i][0], rank), *self._shapes[i][1:])

    def _sizes_of_mine(self) -> list[int]:
        """Return how many values each rank holds of this rank's share."""
        rows = [(self._shapes[i][0], prod(self._shapes[i][1:])) for i in self._dealt.mine]
        ranks = range(self._dealt.num_ranks)
        return [sum(self._num_rows(num, rank) * size for num, size in rows) for rank in ranks]

    def _of_all(self, sizes: Mapping[int, int]) -> list[int]:
        return [sizes.get(rank, 0) for rank in range(self._dealt.num_ranks)]

    def _joined(self, tensors: Sequence[Tensor], *, dtype: torch.dtype) -> Tensor:
        flat = [tensor.flatten().to(dtype) for tensor in tensors]
        return torch.cat(flat) if flat else torch.empty(0, dtype=dtype, device=self._dealt.device)

    def _exchange(self, buffer: Tensor, *, sent: list[int], expected: list[int]) -> Tensor:
        """Send each rank its number of values of the buffer, and return all that came, by rank."""
        received = buffer.new_empty(sum(expected))
        distributed.all_to_all_single(received, buffer, expected, sent, group=self._dealt.ranks)
        return received


Sharing = Alone | Copies


@final
class Dealt:
    """The ranks' tensors to work on; a product of a matrix with itself costs its size times its short side."""

    def __init__(self, parameters: Sequence[Tensor], ranks: ProcessGroup) -> None:
        self.ranks, self.num_ranks, self.rank = ranks, ranks.size(), ranks.rank()
        owners = deal([parameter.numel() * min(parameter.shape[-2:]) for parameter in parameters], self.num_ranks)
        self.device = parameters[0].device
        shares: dict[int, list[int]] = {}
        for i, owner in enumerate(owners):
            shares.setdefault(owner, []).append(i)
        self.shares = dict(sorted(shares.items()))  # of the ranks with any: thousands of ranks have none
        self.mine = self.shares.get(self.rank, [])

    def to_all(
        self, done: Mapping[int, Tensor], *, shapes: Sequence[Sequence[int]], dtype: torch.dtype
    ) -> list[Tensor]:
        """Give every rank the tensors of all shares: one all-gather, of the largest share's size a rank."""
        sizes = {rank: sum(prod(shapes[i]) for i in share) for rank, share in self.shares.items()}
        largest = max(sizes.values())
        buffer = torch.zeros(largest, dtype=dtype, device=self.device)
        if self.mine:
            torch.cat([done[i].flatten().to(dtype) for i in self.mine], out=buffer[: sizes[self.rank]])
        gathered = buffer.new_empty(self.num_ranks, largest)
        gather_one(gathered.view(-1), buffer, group=self.ranks)  # into a list NCCL would copy once more
        found: Whole = {}
        for rank, share in self.shares.items():
            found |= zip(share, _unpack(gathered[rank], [shapes[i] for i in share]), strict=True)
        return [found[i] for i in range(len(shapes))]


def _unpack(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    ends = list(accumulate(map(prod, shapes)))
    return [flat[end - prod(shape) : end].view(*shape) for shape, end in zip(shapes, ends, strict=True)]
