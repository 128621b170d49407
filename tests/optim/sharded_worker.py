"""One of several ranks that train the tiny model as data parallelism and FSDP2 do, beside a copy trained alone."""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from lmtrain.launch.detect import outer_launcher
from lmtrain.launch.process_group import join
from lmtrain.optim.muon import Muon, muon
from lmtrain.optim.muon_update import QUINTICS, orthogonalize
from lmtrain.optim.parameter_groups import require_each_once
from tests.leave import leave
from tests.optim.models import fill_gradients, tiny_model
from tests.optim.options import NEAR, build

SETTINGS: dict[str, Any] = {
    "lr": 0.02, "embedding_lr": 0.03, "head_lr": 0.004, "vector_lr": 0.01, "row_beta": 0.9, "weight_decay": 0.1,
    "cautious_decay": True, "iteration": "polar_express", "beta1": 0.8, "beta2": 0.95, "eps": 1e-7,
}  # fmt: skip
ONE_ROUNDING = 2e-3  # in bf16, of an update of 0.02 x sqrt(3): stacks of other sizes multiply in another order


def meet() -> None:
    """Meet the other rank in the file that tests.forked names."""
    torch.set_num_threads(1)
    outer = outer_launcher(os.environ)
    assert outer is not None
    join(outer)


def sharded_model() -> Any:
    model, mesh = tiny_model(), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole_of(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()


def require_same(model: nn.Module, expected: nn.Module, *, atol: float) -> None:
    for (name, mine), (_, theirs) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        found, wanted = whole_of(mine), theirs.detach()
        torch.testing.assert_close(found, wanted, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def require_equal_copies(model: nn.Module) -> None:
    """Make sure that every rank holds the same weights, to the last bit."""
    for name, parameter in model.named_parameters():
        copies = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, parameter.detach())
        assert all(torch.equal(copies[0], copy) for copy in copies), name


def note_matrices(seen: list[bytes]) -> None:
    """Note the bits of every matrix that this rank orthogonalises."""

    def noted(matrices: torch.Tensor, **settings: Any) -> torch.Tensor:
        seen.extend(matrix.numpy().tobytes() for matrix in matrices)
        return orthogonalize(matrices, **settings)

    import lmtrain.optim.muon_update as module

    module.orthogonalize = noted


def of_all_ranks(seen: list[bytes]) -> list[bytes]:
    """Return the matrices of every rank, in one order."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, seen)
    return sorted(each for rank in found for each in rank)


def muon_everywhere() -> None:
    """One step of Muon after another: alone, as copies that share the work, and sharded."""
    meet()
    seen: list[bytes] = []
    note_matrices(seen)
    alone, copies, slices = tiny_model(), tiny_model(), sharded_model()
    optimizers = muon(alone, **SETTINGS, share_work=False), muon(copies, **SETTINGS), muon(slices, **SETTINGS)
    found: list[list[bytes]] = []
    for step in range(3):
        for model, optimizer in zip((alone, copies, slices), optimizers, strict=True):
            fill_gradients(model, step)  # the same tokens on every rank, so that the mean gradient is that of one
            seen.clear()
            optimizer.step()
            found.append([*seen])
    of_one, of_copies, of_slices = sorted(found[0]), of_all_ranks(found[1]), of_all_ranks(found[2])
    assert len(of_one) == len(of_copies) == len(of_slices) == 8, "ranks repeat each other's work"
    assert of_copies == of_one, "a rank works on other numbers than one process"
    if dist.get_world_size() == 2:  # a third of three equal gradients is rounded
        assert of_slices == of_one, "slices make other matrices"
    require_same(copies, alone, atol=ONE_ROUNDING)
    require_same(slices, alone, atol=ONE_ROUNDING)
    require_equal_copies(copies)
    gathered = sharded_model()
    groups = muon(gathered, **SETTINGS, share_work=False).param_groups
    settings: dict[str, Any] = {"quintics": QUINTICS[SETTINGS["iteration"]], "share_work": False}
    in_buckets = Muon(groups, **settings, bucket_values=1)
    for step in range(3):
        fill_gradients(gathered, step)
        in_buckets.step()
    require_same(gathered, alone, atol=ONE_ROUNDING)
    momentum = optimizers[2].state[slices.blocks[0].up.weight]["momentum"]
    assert isinstance(momentum, DTensor), "the momentum is not sharded like its parameter"
    leave()


def every_option_sharded() -> None:
    """Each option of an optimizer gives a sharded model the weights of one that is whole."""
    meet()
    for option, atol in sorted(NEAR.items()):  # in one order on every rank
        alone, slices = tiny_model(), sharded_model()
        optimizers = build(option, alone), build(option, slices)
        require_each_once(slices, optimizers[1])
        for step in range(3):
            for model, optimizer in zip((alone, slices), optimizers, strict=True):
                fill_gradients(model, step)
                optimizer.step()
        try:
            require_same(slices, alone, atol=atol)
        except AssertionError as difference:
            raise AssertionError(f"optimizer={option}: {difference}") from difference
    leave()


def eight_bits_sharded(folder: str) -> None:
    """Train a matrix that is kept in 8 bits on each rank beside a whole one, and again from a checkpoint.

    The package's step runs eagerly: test_adamw_8bit.py compiles it.
    """
    torch.compiler.set_stance("force_eager")
    meet()
    alone, slices = wide_model(), wide_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(slices.blocks[0], mesh=mesh)
    optimizers = build("adamw_8bit", alone), build("adamw_8bit", slices)
    for _ in range(3):
        train_wide(alone, optimizers[0])
        train_wide(slices, optimizers[1])
    moment = optimizers[1].state[slices.blocks[0].weight]["exp_avg"]
    assert type(moment.to_local()).__name__ == "OptimState8bit"
    require_same(slices, alone, atol=0)
    dcp.save(get_optimizer_state_dict(slices, optimizers[1]), checkpoint_id=folder)

    again = wide_model()
    fully_shard(again.blocks[0], mesh=mesh)
    again.load_state_dict(slices.state_dict())
    optimizer = build("adamw_8bit", again)
    state = get_optimizer_state_dict(again, optimizer)  # takes a step without gradients to have somewhere to load to
    dcp.load(state, checkpoint_id=folder)
    set_optimizer_state_dict(again, optimizer, state)
    train_wide(again, optimizer)
    train_wide(alone, optimizers[0])
    require_same(again, alone, atol=0)
    leave()


def wide_model() -> Any:
    """Return a matrix of which each of two ranks has 8,192 values: torchao keeps fewer than 4,096 in their format."""
    torch.manual_seed(0)
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(64, 256, bias=False)])
    return model


def train_wide(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Take one step on inputs that every rank has."""
    inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    model.blocks[0](inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    {each.__name__: each for each in (muon_everywhere, every_option_sharded, eight_bits_sharded)}[sys.argv[1]](
        *sys.argv[2:]
    )
