import pytest
import torch
from torch import nn

from lmtrain.optim.muon import muon
from lmtrain.optim.muon_update import Matrices, fused_matrices
from tests.models.test_base import tiny_llama

RATES = {"lr": 0.02, "embedding_lr": 0.03, "head_lr": 0.004, "vector_lr": 0.01, "iteration_dtype": "fp32"}
WIDTH = 8


class Block(nn.Module):
    """Matrices of these rows, as one weight or each by itself."""

    def __init__(self, rows, *, is_fused):
        super().__init__()
        heights = [sum(rows)] if is_fused else rows
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(height, WIDTH)) for height in heights)
        self.fused_rows = {"weights.0": rows} if is_fused else {}


class Model(nn.Module):
    def __init__(self, rows, *, is_fused):
        super().__init__()
        self.blocks = nn.ModuleList([Block(rows, is_fused=is_fused)])


@pytest.mark.parametrize(
    ("rows", "row_beta"),
    [((8, 8, 8), None), ((8, 8, 8), 0.9), ((16, 8, 8), 0.9), ((20, 20), 0.9), ((8, 4, 4), None)],
)
def test_matrices_in_one_weight_move_as_if_each_had_its_own(rows, row_beta):
    """A wide one alone has its columns evened, in a fused weight its rows: it is compared without."""
    fused, apart = Model(rows, is_fused=True), Model(rows, is_fused=False)
    optimizers = [muon(model, **RATES, row_beta=row_beta) for model in (fused, apart)]
    for _ in range(3):
        gradient = torch.randn(sum(rows), WIDTH)
        next(fused.parameters()).grad = gradient.clone()
        for weight, piece in zip(apart.parameters(), gradient.split(rows), strict=True):
            weight.grad = piece.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(next(fused.parameters()), torch.cat([*apart.parameters()]))


def test_a_weight_in_the_order_of_ranks_has_the_same_matrices():
    whole = torch.arange(24.0).view(12, 2)  # 2 ranks with 1, 2 and 3 rows of each matrix
    matrices = Matrices(whole.shape, (1, 2, 3))
    first, second, third = matrices.split(whole)
    assert torch.equal(first, whole[[0, 6]])
    assert torch.equal(second, whole[[1, 2, 7, 8]])
    assert torch.equal(third, whole[[3, 4, 5, 9, 10, 11]])
    assert torch.equal(matrices.join([first, second, third]), whole)
    assert matrices.growth == 3**0.5, "6 rows of 2 columns"


def test_models_name_theirs():
    model = tiny_llama()
    found = fused_matrices(model)
    assert found[model.get_parameter("blocks.0.self_attention.qkv.weight")].rows == (32, 16, 16)
    assert {matrices.num_ranks for matrices in found.values()} == {1}
    assert len(found) == 2 * len(model.blocks)
