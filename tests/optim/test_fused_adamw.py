"""The same numbers as torch.optim.AdamW in its fused form, whatever a step meets."""

import copy
import io

import pytest
import torch
from torch.profiler import profile

from lmtrain.optim.fused_adamw import FusedAdamW
from tests.optim.models import TinyModel, fill_gradients, tiny_model
from tests.optim.reference import decayed_and_others

SETTINGS = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-7, "fused": True}
Pair = tuple[tuple[TinyModel, FusedAdamW], tuple[TinyModel, torch.optim.AdamW]]


@pytest.fixture
def pair() -> Pair:
    """Make two equal models: ours and torch's."""
    mine, other = tiny_model(), tiny_model()
    ours = FusedAdamW(decayed_and_others(mine), **SETTINGS)
    return (mine, ours), (other, torch.optim.AdamW(decayed_and_others(other), **SETTINGS))


def step(pair: Pair, number: int, *, without: str | None = None) -> None:
    """Step both on the same gradients; one parameter, by name, may have none."""
    for model, optimizer in pair:
        fill_gradients(model, number)
        if without is not None:
            model.get_parameter(without).grad = None
        optimizer.step()


def require_equal(pair: Pair) -> None:
    (mine, ours), (other, theirs) = pair
    for one, two in zip(mine.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)


def test_equals_torch_s_with_its_state_step_by_step(pair):
    for number in range(20):
        step(pair, number)
        require_equal(pair)


@pytest.mark.parametrize("missing_at", [(0, 1), (3,), (0, 4)])
def test_a_parameter_without_a_gradient_stays_and_its_count_too(pair, missing_at):
    for number in range(7):
        step(pair, number, without="norm.weight" if number in missing_at else None)
        require_equal(pair)


def test_settings_that_change_count_from_the_next_step(pair):
    for number in range(6):
        for _, optimizer in pair:
            optimizer.param_groups[0].update(lr=0.01 / (number + 1), weight_decay=0.1 * number, betas=(0.7, 0.9))
        step(pair, number)
    require_equal(pair)


def test_loaded_state_takes_the_place_of_what_was_looked_up(pair):
    step(pair, 0)
    saved = [io.BytesIO() for _ in pair]
    for (_, optimizer), file in zip(pair, saved, strict=True):
        torch.save(optimizer.state_dict(), file)
    for number in (1, 2):
        step(pair, number)
    for (_, optimizer), file in zip(pair, saved, strict=True):
        optimizer.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    for number in (3, 4):
        step(pair, number)
        require_equal(pair)


def test_a_copy_steps_its_own_tensors(pair):
    for number in range(3):
        step(pair, number)
    ours = pair[0][1]
    before = copy.deepcopy(ours.state_dict())
    twin = copy.deepcopy(ours)
    for group in twin.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    twin.step()
    torch.testing.assert_close(ours.state_dict(), before, rtol=0, atol=0)
    assert twin.state_dict()["state"][0]["step"] == 4


def test_a_group_that_is_added_trains_with_the_others(pair):
    step(pair, 0)
    step(pair, 1)
    added = [torch.nn.Parameter(torch.ones(3)) for _ in pair]
    for (_, optimizer), parameter in zip(pair, added, strict=True):
        optimizer.add_param_group({"params": [parameter], "weight_decay": 0.0})
    for number in range(2, 5):
        for parameter in added:
            parameter.grad = torch.full((3,), float(number))
        step(pair, number)
    require_equal(pair)
    assert torch.equal(*added)
    assert not torch.equal(added[0], torch.ones(3))


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_gradients_are_divided_and_a_step_is_skipped_as_torch_does(pair, found_inf):
    step(pair, 0)
    for number in (1, 2):
        for _, optimizer in pair:
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(found_inf)
        step(pair, number)
        require_equal(pair)


def test_what_torch_alone_can_do_is_left_to_it(pair):
    for _, optimizer in pair:
        optimizer.param_groups[0]["maximize"] = True
    for number in range(3):
        step(pair, number)
    require_equal(pair)


def test_two_formats_in_a_group_go_torch_s_way(pair):
    for model, _ in pair:
        model.blocks[0].up.half()
    for (model, optimizer), number in [(one, number) for one in pair for number in range(3)]:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.1 * (number + 1))
        optimizer.step()
    require_equal(pair)


def test_a_closure_is_called_with_gradients_and_its_loss_comes_back(pair):
    model, optimizer = pair[0]
    for number in range(3):
        fill_gradients(model, number)

        def closure() -> torch.Tensor:
            assert torch.is_grad_enabled()
            return torch.tensor(7.0)

        with torch.no_grad():
            assert optimizer.step(closure) == 7.0


def test_hooks_around_a_step_are_called_once(pair):
    model, optimizer = pair[0]
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for number in range(3):
        fill_gradients(model, number)
        optimizer.step()
    assert calls == ["before", "after"] * 3


def test_a_step_is_one_launch_a_group(pair):
    model, optimizer = pair[0]
    for number in range(2):
        fill_gradients(model, number)
        optimizer.step()
    fill_gradients(model, 2)
    with profile() as trace:
        optimizer.step()
    assert sum(event.name == "aten::_fused_adamw_" for event in trace.events() or []) == len(optimizer.param_groups)
