import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from lmtrain.parallel.gradients import global_norm, scale_gradients
from tests.ranks import on_ranks

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


def test_the_global_norm_of_two_formats_is_that_of_torch():
    mixed = parameters()
    mixed[0].data, mixed[0].grad = mixed[0].data.double(), gradients(mixed)[0].double()
    expected = torch.nn.utils.clip_grad_norm_(mixed, float("inf"))
    torch.testing.assert_close(global_norm(mixed), expected)


def test_gradients_are_scaled_in_place_and_absent_ones_stay_absent():
    scaled, untouched = parameters(), parameters()
    addresses = [gradient.data_ptr() for gradient in gradients(scaled)]
    scale_gradients(scaled, torch.tensor(0.25, dtype=torch.float64))
    assert scaled[-1].grad is None
    assert [gradient.data_ptr() for gradient in gradients(scaled)] == addresses
    for gradient, before in zip(gradients(scaled), gradients(untouched), strict=True):
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, before * 0.25)


def test_scaling_reads_no_value_from_the_device():
    """A meta tensor has no value: whoever reads one fails."""
    parameter = torch.nn.Parameter(torch.zeros(3, device="meta"))
    parameter.grad = torch.zeros(3, device="meta")
    scale_gradients([parameter], global_norm([parameter]))


@pytest.mark.distributed
@pytest.mark.slow
def test_slices_on_several_meshes_and_whole_tensors_give_the_norm_of_the_whole(tmp_path):
    on_ranks(_rank, folder=tmp_path)
    whole = parameters()
    expected = torch.nn.utils.clip_grad_norm_(whole, float("inf"))
    for rank in range(2):
        norm, scaled = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(norm, expected)
        for gradient, before in zip(scaled, gradients(parameters()), strict=True):
            torch.testing.assert_close(gradient, before * 0.5)


def _rank(rank):
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
