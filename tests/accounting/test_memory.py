import pytest

from lmtrain.accounting.memory import static_memory
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [("sgd", 8), ("momentum", 12), ("adagrad", 12), ("rmsprop", 12), ("adamw", 16)],
)
def test_fp32_bytes_per_parameter(optimizer, bytes_per_parameter):
    assert static_memory(1_000_000_000, optimizer=optimizer).total == bytes_per_parameter * 10**9


def test_bf16_weights_halve_everything():
    assert static_memory(10**9, optimizer="adamw", bytes_per_value=2).total == 8 * 10**9


def test_a_kept_bf16_copy_costs_two_bytes():
    assert static_memory(10**9, optimizer="adamw", extra_copy_bytes=2).total == 18 * 10**9


@pytest.mark.parametrize(("num_parameters", "total", "num_h100"), [(70e9, 1_120e9, 14), (405e9, 6.48e12, 81)])
def test_large_models_need_the_known_number_of_h100(num_parameters, total, num_h100):
    assert static_memory(int(num_parameters), optimizer="adamw").total == total
    assert static_memory(int(num_parameters), optimizer="adamw", num_shards=num_h100).total <= 80e9
    assert static_memory(int(num_parameters), optimizer="adamw", num_shards=num_h100 - 1).total > 80e9


@pytest.mark.parametrize(("optimizer", "build"), [("sgd", {}), ("momentum", {"momentum": 0.9})])
def test_table_equals_the_state_that_torch_keeps(optimizer, build):
    assert_state(optimizer, lambda torch: torch.optim.SGD, build)


@pytest.mark.parametrize(("optimizer", "name"), [("adagrad", "Adagrad"), ("rmsprop", "RMSprop"), ("adamw", "AdamW")])
def test_table_equals_the_state_that_torch_keeps_for_adaptive_optimizers(optimizer, name):
    assert_state(optimizer, lambda torch: getattr(torch.optim, name), {})


def assert_state(optimizer, find_class, settings):
    import torch

    parameter = torch.nn.Parameter(torch.ones(1000))
    torch_optimizer = find_class(torch)([parameter], lr=0.1, **settings)
    parameter.grad = torch.ones(1000)
    torch_optimizer.step()
    measured = sum(
        value.numel() * value.element_size()
        for state in torch_optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    assert measured == static_memory(1000, optimizer=optimizer).optimizer


def test_unknown_optimizer_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigurationError, match="Did you mean 'adamw'"):
        static_memory(1, optimizer="adam_w")
