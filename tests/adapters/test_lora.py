import pytest

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.adapters.lora import Lora
from lmtrain.adapters.low_rank import adapters_of
from lmtrain.errors import ConfigurationError
from lmtrain.optim.parameter_groups import trained_parameters
from tests.adapters.test_low_rank import small


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, r"adapter.rank=0 is below 1; nearest valid: 1\."),
        ({"alpha": 0}, r"adapter.alpha=0 is not above 0; nearest usual: 8\."),
        ({"dropout": 1}, r"adapter.dropout=1 is not at least 0 and below 1"),
        ({"targets": []}, r"adapter.targets=\[\] adapts nothing; nearest valid: null"),
        ({"targets": ["q_proj"]}, r"adapter.targets holds q_proj; the blocks' linear layers are qkv, output, gate_up"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused(settings, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Lora(**{"rank": 4, "alpha": 8, **settings}).attach(small(), seed=0)


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
