"""Read and write parameters, sharded by FSDP2 or not, and find the ranks with copies or slices of one another."""

from dataclasses import dataclass

from torch import Tensor, distributed  # noqa: TID251  with work_sharing.py, the only ones in this package with ranks
from torch.distributed import ProcessGroup  # noqa: TID251
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: TID251  a sharded parameter is one of these


@dataclass(frozen=True)
class Place:
    """How a tensor lies over the ranks of `ranks`: as slices of its first axis, or as copies; None: all of it here.

    Slices may have copies elsewhere; each group of ranks works for itself. A tensor placed otherwise (cut along
    another axis, or along two) counts as alone, and is gathered whole where needed.
    """

    ranks: ProcessGroup | None = None
    is_sliced: bool = False


ALONE = Place()


def place_of(tensor: Tensor) -> Place:
    """Return a parameter's place; a plain one is a copy of the other ranks', as data parallelism keeps it.

    A strategy with other layers on other ranks sets a parameter's `ranks_with_copies`, a process group.
    """
    if isinstance(tensor, DTensor):
        *copies, last = tensor.placements
        is_sliced = last == Shard(0) and all(place.is_replicate() for place in copies)
        return Place(tensor.device_mesh.get_group(len(copies)), is_sliced=True) if is_sliced else ALONE
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        ranks: ProcessGroup | None = getattr(tensor, "ranks_with_copies", distributed.group.WORLD)
        return Place(ranks) if ranks is not None and ranks.size() > 1 else ALONE
    return ALONE


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part, sharing its storage; the tensor itself when it is whole."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(part: Tensor, like: Tensor) -> Tensor:
    """Gather `part`, this rank's part of something laid out as `like`, on every rank: one all-gather, or none."""
    if not isinstance(like, DTensor):
        return part
    laid_out = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return laid_out.full_tensor()


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Cut out of `tensor`, equal on every rank, this rank's part of `like`: no communication."""
    if not isinstance(like, DTensor):
        return tensor
    replicated = DTensor.from_local(tensor, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return replicated.redistribute(placements=like.placements).to_local()
