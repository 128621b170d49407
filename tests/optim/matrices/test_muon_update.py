"""The whole update of matrices: one graph when compiled, and the parts around collectives give the same."""

from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from lmtrain.optim.muon import Muon, muon
from lmtrain.optim.muon_update import NEWTON_SCHULZ, Recipe, StepRates, begin, direct, even, move, update_all
from tests.optim.models import tiny_model
from tests.optim.test_muon import RATES


def test_a_schedule_s_rates_as_tensors_give_the_update_of_the_numbers() -> None:
    recipe = Recipe(NEWTON_SCHULZ, torch.float32, row_beta=0.9, cautious_decay=True)
    rates, shapes, factors, alone = StepRates(0.02, 0.95, 0.01), [(8, 4), (4, 4), (8, 4)], [1.4, 1.0, 1.4], [None] * 3
    found: list[list[torch.Tensor]] = []
    for as_parts, given in ((False, rates), (True, rates), (False, rates.as_tensors())):
        generator = torch.Generator().manual_seed(0)
        weights, gradients, averages = ([torch.randn(s, generator=generator) for s in shapes] for _ in range(3))
        squares = [torch.ones(s[0], 1) for s in shapes]
        if as_parts:
            directions, sizes = direct(begin(gradients, averages, given.momentum), alone, recipe)
            move(weights, directions, even(sizes, squares, alone, recipe.row_beta), factors, given, recipe)
        else:
            update_all(weights, gradients, averages, squares, alone, factors, given, recipe)
        found.append([*weights, *averages, *squares])
    for parts, tensors, whole in zip(found[1], found[2], found[0], strict=True):
        assert torch.equal(parts, whole)
        torch.testing.assert_close(tensors, whole, rtol=0, atol=1e-6)  # a product rounded before it is subtracted


def test_a_compiled_update_has_two_graphs_a_shape_of_many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # graphs without kernels
    shapes = [(8, 32), (16, 16), (32, 8), (4, 64), (64, 4)]
    model = torch.nn.Module()
    model.blocks = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes for _ in range(5))
    groups = muon(model, **RATES).param_groups
    optimizer = Muon(groups, quintics=NEWTON_SCHULZ, compiled=True, bucket_values=2 * 256)
    for step in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape)
        optimizer.param_groups[0]["lr"] = 0.02 / (step + 1)
        optimizer.step()
        assert counters["stats"]["unique_graphs"] == 2 * len(shapes), "of two weights and of one"


@pytest.mark.slow
def test_a_compiled_update_is_one_graph_for_all_steps_and_equals_the_eager_one() -> None:
    torch.compiler.reset()
    counters.clear()
    eager, compiled = tiny_model(), tiny_model()
    settings: dict[str, Any] = {**RATES, "row_beta": 0.9, "weight_decay": 0.1, "cautious_decay": True}
    settings["iteration_dtype"] = "fp32"
    optimizers = muon(eager, **settings), muon(compiled, **settings, compile_update=True)
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        for mine, other in zip(eager.parameters(), compiled.parameters(), strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.02 / (step + 1)  # schedules move these at every step
            optimizer.param_groups[0]["momentum"] = 0.9 + 0.01 * step
            optimizer.step()
    for mine, other in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)  # of weights that moved by 0.02: fp32's roundings
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
