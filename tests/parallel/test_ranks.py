from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from lmtrain.parallel.gradients import global_norm, scale_gradients
from lmtrain.parallel.rank_reports import (
    bit_sums,
    differing,
    first_problem,
    on_all_ranks,
)
from tests.ranks import on_ranks


def _rank(rank: int) -> None:
    assert on_all_ranks({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    acted: list[int] = []
    assert first_problem(lambda: acted.append(rank), acts=rank == 1) is None
    assert acted == [1] * rank

    def fail_on_1() -> None:
        if rank == 1:
            raise RuntimeError("the second one")

    assert first_problem(fail_on_1) == "the second one"


@pytest.mark.distributed
def test_every_rank_learns_of_one_ranks_problem(tmp_path: Path) -> None:
    on_ranks(_rank, folder=tmp_path)


ROWS = torch.arange(12.0).view(6, 2)


def a_sharded_entry_a_copy_and_a_nan_are_named_by_their_ranks(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    sharded = distribute_tensor(ROWS.clone(), mesh, [Shard(0)])
    sharded.to_local()[0, 0] += 0.5 if rank == 1 else 0.01
    own: dict[str, Tensor] = {
        "sharded": sharded,
        "copied": ROWS + 2.0 * (rank == 0),
        "same": ROWS + 0.01 * rank,
        "nan": ROWS * (torch.nan if rank == 1 else 1.0),
    }
    found = differing(own, dict.fromkeys(own, ROWS), dict.fromkeys(own, 0.1), dict)
    assert found["sharded"] == (0.5, (1,)), "rank 1 holds the wrong row, though both put the whole together"
    assert found["copied"] == (2.0, (0,))
    assert found["same"] == (pytest.approx(0.01, rel=1e-4), ())
    assert found["nan"] == (float("inf"), (1,))


@pytest.mark.distributed
def test_differences_are_named_by_the_ranks_that_hold_them(tmp_path: Path) -> None:
    on_ranks(a_sharded_entry_a_copy_and_a_nan_are_named_by_their_ranks, folder=tmp_path)


def test_one_flipped_bit_of_any_format_changes_the_sum_of_its_tensor_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    formats = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    tensors = [torch.randn(5, 7, generator=generator).to(dtype) for dtype in formats]
    before = bit_sums(tensors)
    for at, tensor in enumerate(tensors):
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        for bit in (0, 8 * tensor.element_size() - 2):
            tensor.view(integers)[3, 2] ^= 1 << bit
            assert (bit_sums(tensors) != before).tolist() == [other == at for other in range(len(tensors))]
            tensor.view(integers)[3, 2] ^= 1 << bit
    assert torch.equal(bit_sums(tensors), before)


SHAPES = [(3, 4), (7,), (2, 2, 2)]


def parameters():
    """Parameters with gradients, and one without."""
    generator = torch.Generator().manual_seed(0)
    filled = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    for parameter in filled:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return [*filled, torch.nn.Parameter(torch.zeros(5))]


def gradients(parameters):
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def test_the_global_norm_is_that_of_torch():
    expected = torch.nn.utils.clip_grad_norm_(parameters(), float("inf"))
    torch.testing.assert_close(global_norm(parameters()), expected)


def test_a_large_gradient_s_norm_is_that_of_exact_sums():
    """torch's own is too small by 1.2e-5."""
    parameter = torch.nn.Parameter(torch.zeros(4096, 256))
    parameter.grad = torch.randn(4096, 256, generator=torch.Generator().manual_seed(0)) * 1e-3
    exact = parameter.grad.double().norm().float()
    torch.testing.assert_close(global_norm([parameter]), exact, rtol=2e-7, atol=0)


@pytest.mark.distributed
@pytest.mark.slow
def test_slices_on_several_meshes_and_whole_tensors_give_the_norm_of_the_whole(tmp_path):
    on_ranks(_rank_gradients, folder=tmp_path)
    whole = parameters()
    expected = torch.nn.utils.clip_grad_norm_(whole, float("inf"))
    for rank in range(2):
        norm, scaled = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(norm, expected)
        for gradient, before in zip(scaled, gradients(parameters()), strict=True):
            torch.testing.assert_close(gradient, before * 0.5)


def _rank_gradients(rank):
    line, square = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
    mixed = parameters()
    for index, (mesh, placements) in enumerate([(line, [Shard(0)]), (square, [Shard(0), Replicate()])]):
        gradient = mixed[index].grad
        mixed[index] = torch.nn.Parameter(distribute_tensor(torch.zeros_like(gradient), mesh, placements))
        mixed[index].grad = distribute_tensor(gradient, mesh, placements)
    norm = global_norm(mixed)
    scale_gradients(mixed, torch.tensor(0.5))
    whole = [gradient.full_tensor() if isinstance(gradient, DTensor) else gradient for gradient in gradients(mixed)]
    torch.save((norm, whole), f"{rank}.pt")
