"""Muon's rule against its formula, the AdamW inside against torch's, and state that survives a round trip."""

import copy

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from lmtrain.errors import ConfigurationError
from lmtrain.optim.muon import Muon, muon
from lmtrain.optim.muon_update import POLAR_EXPRESS, orthogonalize
from tests.optim.matrices.test_orthogonalize import matrix_with_singular_values
from tests.optim.models import fill_gradients, tiny_model

RATES = {"lr": 0.02, "embedding_lr": 0.03, "head_lr": 0.004, "vector_lr": 0.01}
SETTINGS = {**RATES, "row_beta": 0.9, "iteration": "polar_express", "beta1": 0.8, "beta2": 0.95, "eps": 1e-7}


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        fill_gradients(model, step)
        optimizer.step()


def test_every_parameter_is_in_exactly_one_group() -> None:
    model = tiny_model()
    optimizer = muon(model, **SETTINGS)
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    assert {g["name"]: g["lr"] for g in optimizer.param_groups} == {
        "matrices": 0.02, "embeddings": 0.03, "head": 0.004, "vectors": 0.01,
    }  # fmt: skip


def test_matrix_update_is_the_published_rule() -> None:
    model = tiny_model()
    optimizer = muon(model, **RATES, momentum=0.9, iteration="polar_express", weight_decay=0.5)
    before, gradients = copy.deepcopy(model), []
    for step in range(2):
        fill_gradients(model, step)
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
    for name in ("blocks.0.left.weight", "blocks.1.up.weight", "blocks.1.down.weight"):
        weights, average = before.get_parameter(name).detach(), torch.zeros(())
        for gradient in gradients:
            average = 0.9 * average + 0.1 * gradient[name]
            source = 0.1 * gradient[name] + 0.9 * average
            direction = orthogonalize(source[None], quintics=POLAR_EXPRESS)[0].float()
            scale = max(1, weights.shape[0] / weights.shape[1]) ** 0.5
            weights = weights * (1 - 0.02 * 0.5) - 0.02 * scale * direction
        torch.testing.assert_close(model.get_parameter(name).detach(), weights, rtol=0, atol=1e-3)  # bf16 products


def test_other_parameters_follow_torch_adamw_step_by_step() -> None:
    ours, theirs = tiny_model(), tiny_model()
    optimizer = muon(ours, **SETTINGS)
    others = [g for g in muon(theirs, **SETTINGS).param_groups if g["kind"] == "adamw"]
    reference = torch.optim.AdamW(
        [{"params": g["params"], "lr": g["lr"]} for g in others],
        betas=(0.8, 0.95), eps=1e-7, weight_decay=0.0, foreach=False,
    )  # fmt: skip
    for step in range(4):
        theirs.load_state_dict(ours.state_dict())
        for model, one in ((ours, optimizer), (theirs, reference)):
            fill_gradients(model, step)
            one.step()
        for group in reference.param_groups:
            for parameter in group["params"]:
                name = next(n for n, p in theirs.named_parameters() if p is parameter)
                torch.testing.assert_close(ours.get_parameter(name), parameter, rtol=0, atol=1e-6)


def test_stacking_does_not_change_the_update() -> None:
    together, apart = tiny_model(), tiny_model()
    train(together, muon(together, **SETTINGS), range(3))
    [matrices, *others] = muon(apart, **SETTINGS).param_groups
    alone = [{**matrices, "params": [p]} for p in matrices["params"]]
    train(apart, Muon([*alone, *others], quintics=POLAR_EXPRESS), range(3))
    for mine, other in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-3)  # one bf16 rounding of an update of size 0.02 x 3


@pytest.mark.parametrize("row_beta", [None, 0.9])
def test_buckets_do_not_change_the_update(row_beta: float | None) -> None:
    together, bucketed = tiny_model(), tiny_model()
    settings = {**SETTINGS, "row_beta": row_beta, "iteration_dtype": "fp32"}
    train(together, muon(together, **settings), range(3))
    groups = muon(bucketed, **settings).param_groups
    train(bucketed, Muon(groups, quintics=POLAR_EXPRESS, dtype=torch.float32, bucket_values=1), range(3))
    for mine, other in zip(together.parameters(), bucketed.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)  # of weights that moved by 0.06: fp32's roundings


def test_state_dict_round_trip_continues_exactly() -> None:
    model = tiny_model()
    optimizer = muon(model, **SETTINGS)
    train(model, optimizer, range(2))
    other = copy.deepcopy(model)
    resumed = muon(other, **SETTINGS)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, range(2, 4))
    train(other, resumed, range(2, 4))
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_momentum_is_what_its_group_says_at_each_step() -> None:
    model = tiny_model()
    optimizer = muon(model, **RATES, momentum=0.97)
    weight = model.get_parameter("blocks.0.left.weight")
    expected = torch.zeros(8, 8)
    for step, momentum in enumerate((0.85, 0.91, 0.97)):
        optimizer.param_groups[0]["momentum"] = momentum
        fill_gradients(model, step)
        assert weight.grad is not None
        expected = momentum * expected + (1 - momentum) * weight.grad
        optimizer.step()
        torch.testing.assert_close(optimizer.state[weight]["momentum"], expected)


def test_one_schedule_moves_every_group() -> None:
    optimizer = muon(tiny_model(), **SETTINGS)
    schedule = LambdaLR(optimizer, lambda step: 1.0 if step == 0 else 0.5)
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.015, 0.002, 0.005]


def count_operations(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    with torch.profiler.profile() as profile:
        optimizer.step()
    return {event.key: event.count for event in profile.key_averages()}


def test_step_never_waits_for_the_device() -> None:
    model = tiny_model()
    optimizer = muon(model, **SETTINGS)
    train(model, optimizer, range(1))
    counts = count_operations(optimizer)
    num_others = sum(len(group["params"]) for group in optimizer.param_groups if group["kind"] == "adamw")
    assert counts["aten::_fused_adamw_"] == 3  # one a group
    # torch's own fused kernel reads its step count once a parameter where the device is the CPU; nothing else may.
    assert counts["aten::_local_scalar_dense"] == num_others
    for group in optimizer.param_groups:
        if group["kind"] == "adamw":
            for parameter in group["params"]:
                parameter.grad = None
    assert "aten::_local_scalar_dense" not in count_operations(optimizer)


def test_parameter_without_gradient_stays() -> None:
    model = tiny_model()
    optimizer = muon(model, **SETTINGS)
    before = copy.deepcopy(model)
    fill_gradients(model, 0)
    model.blocks[0].left.weight.grad = None
    model.head.weight.grad = None
    optimizer.step()
    assert torch.equal(model.blocks[0].left.weight, before.blocks[0].left.weight)
    assert torch.equal(model.head.weight, before.head.weight)
    assert not torch.equal(model.blocks[1].left.weight, before.blocks[1].left.weight)


def test_closure_runs_with_gradients_and_its_loss_comes_back() -> None:
    model = tiny_model()
    optimizer = muon(model, **SETTINGS)

    def closure() -> float:
        fill_gradients(model, 0)
        return 1.5

    assert optimizer.step(closure) == 1.5
    assert model.head.weight.grad is not None


def test_a_stack_of_matrices_moves_like_its_matrices_one_by_one() -> None:
    gradient = torch.randn(3, 8, 24, generator=torch.Generator().manual_seed(0))
    stacked, alone = torch.nn.Module(), torch.nn.Module()
    stacked.blocks = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(3, 8, 24))])
    alone.blocks = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(8, 24)) for _ in range(3))
    for model, gradients in ((stacked, [gradient]), (alone, list(gradient))):
        optimizer = muon(model, **SETTINGS)
        for _ in range(2):
            for parameter, part in zip(model.parameters(), gradients, strict=True):
                parameter.grad = part.clone()
            optimizer.step()
    torch.testing.assert_close(stacked.blocks[0], torch.stack(list(alone.blocks)), rtol=0, atol=1e-6)
    assert stacked.blocks[0].detach().std() > 1e-3


@pytest.mark.parametrize(
    ("iteration", "low", "high"), [("newton_schulz", 0.65, 1.25), ("polar_express", 0.8, 1.18)]
)  # the published bands, and bf16's three digits
@pytest.mark.parametrize("name", ["blocks.0.left.weight", "blocks.1.up.weight", "blocks.1.down.weight"])
def test_an_update_moves_every_direction_of_a_matrix_about_alike(
    name: str, iteration: str, low: float, high: float
) -> None:
    model = tiny_model()
    weight = model.get_parameter(name)
    before = weight.detach().clone()
    weight.grad = matrix_with_singular_values(torch.logspace(0, -1.8, 8, dtype=torch.float64), *weight.shape).float()
    muon(model, **{**RATES, "lr": 1.0}, iteration=iteration).step()
    values = torch.linalg.svdvals((before - weight.detach()) / max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5)
    assert low < values.min() < values.max() < high


def test_matrices_follow_torch_muon_step_by_step() -> None:
    model, generator = torch.nn.Module(), torch.Generator().manual_seed(0)
    shapes = [(24, 8), (8, 24), (16, 48)]
    model.blocks = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes)
    theirs = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = muon(model, **RATES, momentum=0.9, weight_decay=0.1)
    reference = torch.optim.Muon(theirs, lr=0.02, momentum=0.9, weight_decay=0.1, nesterov=True)
    for _ in range(200):
        for mine, other in zip(model.blocks, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)  # far from singular, as bf16 wants it
            other.grad = mine.grad.clone()
        before = [mine.detach().clone() for mine in model.blocks]
        optimizer.step()
        reference.step()
        for mine, other, old in zip(model.blocks, theirs, before, strict=True):
            # torch rounds to bf16 before it scales and scales by 1.01 less: of an update, 6 % at most.
            assert (mine - other).norm() < 0.06 * (mine - old).norm()
            other.data.copy_(mine)  # the next step is from the same weights; momenta are each one's own


def test_cautious_decay_shrinks_only_what_its_update_shrinks() -> None:
    plain, cautious, none = tiny_model(), tiny_model(), tiny_model()
    settings = ({"weight_decay": 0.5}, {"weight_decay": 0.5, "cautious_decay": True}, {})
    before = plain.get_parameter("blocks.0.up.weight").detach().clone()
    for model, more in zip((plain, cautious, none), settings, strict=True):
        train(model, muon(model, **RATES, **more), range(1))
    moved, fully, some = (m.get_parameter("blocks.0.up.weight").detach() for m in (none, plain, cautious))
    agrees = (before - moved) * before > 0  # the update is subtracted
    assert 0.2 < agrees.float().mean() < 0.8
    torch.testing.assert_close(some[agrees], fully[agrees])
    torch.testing.assert_close(some[~agrees], moved[~agrees])


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"cautious_decay=true has no effect while optimizer\.weight_decay=0"):
        muon(tiny_model(), **RATES, cautious_decay=True)
    with pytest.raises(ConfigurationError, match="no weight is bf16"):
        muon(tiny_model(), **RATES, stochastic_rounding=True)


@pytest.mark.parametrize(("stochastic_rounding", "moves"), [(True, True), (False, False)])
def test_bf16_weights_take_small_updates_only_when_rounded_by_chance(stochastic_rounding: bool, moves: bool) -> None:
    model = tiny_model().bfloat16()
    for parameter in model.parameters():
        parameter.data.fill_(1.0)
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    rates = {"lr": 1e-3, "embedding_lr": 1e-3, "head_lr": 1e-3, "vector_lr": 1e-3}
    muon(model, **rates, row_beta=0.9, stochastic_rounding=stochastic_rounding).step()
    for name in ("blocks.0.left.weight", "head.weight"):
        assert bool((model.get_parameter(name) != 1.0).any()) is moves


def test_state_of_bf16_weights_keeps_its_formats_through_a_checkpoint() -> None:
    model = tiny_model().bfloat16()
    optimizer = muon(model, **SETTINGS)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    resumed = muon(model, **SETTINGS)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    weight = model.blocks[0].up.weight
    assert resumed.state[weight]["mean_squares"].dtype == torch.float32
    assert torch.equal(resumed.state[weight]["mean_squares"], optimizer.state[weight]["mean_squares"])


def test_sizes_of_rows_may_begin_with_a_resume() -> None:
    model = tiny_model()
    optimizer = muon(model, **{**SETTINGS, "row_beta": None})
    train(model, optimizer, range(1))
    resumed = muon(model, **{**SETTINGS, "row_beta": 0.9})
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumed.param_groups[0]["row_beta"] = 0.9  # as a run's first step does
    train(model, resumed, range(1, 2))
    assert "mean_squares" in resumed.state[resumed.param_groups[0]["params"][0]]
