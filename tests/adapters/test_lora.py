from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.adapters.lora import Lora
from lmtrain.adapters.low_rank import adapters_of
from lmtrain.optim.parameter_groups import trained_parameters
from tests.adapters.test_low_rank import small


def test_targets_choose_layers() -> None:
    model = Lora(rank=2, alpha=2, targets=["qkv"]).attach(small(), seed=0)
    assert [name for name, _ in adapters_of(model)] == ["layers.0.self_attention.qkv", "layers.1.self_attention.qkv"]


def test_the_plan_counts_gradients_state_and_products_of_adapters_alone() -> None:
    plain, adapted = small(), Lora(rank=2, alpha=2, targets=["output"]).attach(small(), seed=0)
    num_own = 2 * 2 * (32 + 32)
    counted, shape = trained_parameters(adapted), adapted.shape()
    assert (counted.num_trained, counted.num_hidden_matrix) == (num_own, num_own)
    assert counted.num_block_matrix(shape) == trained_parameters(plain).num_block_matrix(plain.shape()) + num_own
    assert shape.num_parameters - shape.num_frozen_parameters == num_own
    whole, frozen = (flops_per_token(model.shape(), 8).palm for model in (plain, adapted))
    assert frozen == whole - 2 * plain.shape().num_matmul_parameters + 6 * num_own
