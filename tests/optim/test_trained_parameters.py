import torch

from lmtrain.optim.parameter_groups import trained_parameters
from tests.configs import config_of
from tests.simulate.test_measured_facts import build


def test_blocks_and_what_is_outside_them_are_all() -> None:
    parameters = trained_parameters(build())
    assert parameters.num_hidden_matrix == 3 * (4 * 64 * 64 + 3 * 64 * 128)
    assert parameters.num_largest_matrix == 2 * 64 * 128  # gate and up in one
    assert parameters.num_outside_blocks == 3 * 64_000 + 64
    assert parameters.num_largest_block == 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64 + 2


def test_a_token_meets_the_matrices_of_blocks_without_vectors_and_idle_experts() -> None:
    plain = build()
    assert trained_parameters(plain).num_block_matrix(plain.shape()) == 3 * (4 * 64 * 64 + 3 * 64 * 128)
    with torch.device("meta"):
        sparse = config_of("model=mixtral_tiny").with_checked("model").model.build()
    weights = [parameter for block in sparse.blocks for parameter in block.parameters() if parameter.dim() > 1]
    shape = sparse.shape()
    idle = shape.num_parameters - shape.num_active_parameters
    assert idle > 0
    assert trained_parameters(sparse).num_block_matrix(shape) == sum(each.numel() for each in weights) - idle
