import torch
from torch import nn

from lmtrain.optim.adamw_update import step_groups


def grouped(*groups: dict[str, object]) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [nn.Parameter(torch.ones(2))], **group} for group in groups], lr=0.1)


def stepped(optimizer: torch.optim.Optimizer, *, with_gradients: bool = True) -> list[int | None]:
    """Return the seed of each stepped group's noise, None for a group without noise."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter) if with_gradients else None
    seeds: list[int | None] = []
    step_groups(optimizer, None, lambda _, __, noise: seeds.append(None if noise is None else noise.initial_seed()))
    return seeds


def test_a_closure_computes_with_gradients_though_a_step_has_none() -> None:
    optimizer = grouped({})
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    with torch.no_grad():
        is_recording: list[bool] = []
        loss = step_groups(optimizer, torch.is_grad_enabled, lambda *_: is_recording.append(torch.is_grad_enabled()))
        assert loss is True
        assert not torch.is_grad_enabled()
    assert is_recording == [False]


def test_without_a_closure_there_is_no_loss() -> None:
    assert step_groups(grouped({}), None, lambda *_: None) is None


def test_groups_without_gradients_are_left_out_and_counted() -> None:
    optimizer = grouped({"num_steps": 3}, {})
    assert stepped(optimizer, with_gradients=False) == []
    assert optimizer.param_groups[0]["num_steps"] == 4
    assert "num_steps" not in optimizer.param_groups[1]


def test_the_noise_of_a_group_is_of_its_step_and_number() -> None:
    optimizer = grouped({"num_steps": 0}, {"num_steps": 0}, {"num_steps": 0, "stochastic_rounding": False}, {})
    first, second = stepped(optimizer), stepped(optimizer)
    assert first[2:] == second[2:] == [None, None]
    seeds = [*first[:2], *second[:2]]
    assert None not in seeds
    assert len(set(seeds)) == 4
