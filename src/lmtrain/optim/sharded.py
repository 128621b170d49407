"""Read and write parameters that FSDP2 may have sharded: the one place in this package which knows of it."""

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate  # noqa: TID251  a sharded parameter is one of these


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
    """Cut out of `tensor`, equal on every rank, what this rank holds of `like`: no communication."""
    if not isinstance(like, DTensor):
        return tensor
    replicated = DTensor.from_local(tensor, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return replicated.redistribute(placements=like.placements).to_local()
