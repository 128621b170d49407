"""One of two ranks that train the tiny model sharded with FSDP2 and hold it against a whole copy trained alone."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from lmtrain.optim.muon import muon
from tests.optim.models import fill_gradients, tiny_model

SETTINGS = {
    "lr": 0.02, "embedding_lr": 0.03, "head_lr": 0.004, "vector_lr": 0.01, "row_beta": 0.9, "weight_decay": 0.1,
    "iteration": "polar_express", "beta1": 0.8, "beta2": 0.95, "eps": 1e-7,
}  # fmt: skip


def main(rank: int, num_ranks: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(num_ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    alone, sharded = tiny_model(), tiny_model()
    mesh = init_device_mesh("cpu", (num_ranks,))
    for block in sharded.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    optimizers = muon(alone, **SETTINGS), muon(sharded, **SETTINGS)
    for step in range(3):
        for model, optimizer in zip((alone, sharded), optimizers, strict=True):
            fill_gradients(model, step)  # the same tokens on every rank, so that the mean gradient is that of one
            optimizer.step()
    for (name, whole), (_, part) in zip(alone.named_parameters(), sharded.named_parameters(), strict=True):
        assert isinstance(part, DTensor), name
        torch.testing.assert_close(
            part.full_tensor(), whole.detach(), rtol=0, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
    momentum = optimizers[1].state[sharded.blocks[0].up.weight]["momentum"]
    assert isinstance(momentum, DTensor), "the momentum is not sharded like its parameter"
    assert momentum.to_local().numel() == momentum.numel() // num_ranks
    dist.destroy_process_group()
