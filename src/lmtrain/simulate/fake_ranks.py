"""One rank of many nonexistent ones: a process group without peers, and a model without bytes cut for its ranks."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.overrides import TorchFunctionMode
from typing_extensions import override


@contextmanager
def fake_ranks(num_ranks: int) -> Generator[DeviceMesh]:
    """Be rank 0 of `num_ranks`, with messages to nobody, and give a strategy's mesh as Lightning would."""
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # advice for torch's own developers
    dist.init_process_group("fake", rank=0, world_size=num_ranks)
    try:
        yield init_device_mesh("cpu", (num_ranks, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    finally:
        dist.destroy_process_group()


class FirstChunk(TorchFunctionMode):
    """Gives the first chunk of a tensor in the place of every other one: the only one read by rank 0.

    FSDP2 cuts each parameter into as many chunks as there are ranks (torch 2.13): for 16,384 ranks a minute of views.
    """

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.chunk:
            return _first_chunks(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _first_chunks(input: torch.Tensor, chunks: int, dim: int = 0) -> list[torch.Tensor]:  # noqa: A002  as torch calls it
    return [input.narrow(dim, 0, -(-input.shape[dim] // chunks))] * chunks
