"""The package's course, and weights that move between its two points."""

import copy

import torch
from schedulefree import AdamWScheduleFree

from lmtrain.optim.schedule_free import schedule_free
from tests.optim.models import fill_gradients, tiny_model
from tests.optim.reference import DECAY, require_same_course


def in_training(optimizer: AdamWScheduleFree) -> AdamWScheduleFree:
    optimizer.train()
    return optimizer


def test_equals_the_package_step_by_step() -> None:
    require_same_course(
        lambda model: schedule_free(model, lr=5e-3, beta1=0.9, beta2=0.98, eps=1e-7, weight_decay=DECAY),
        lambda groups: in_training(AdamWScheduleFree(groups, lr=5e-3, betas=(0.9, 0.98), eps=1e-7)),
    )


def test_it_evaluates_the_average_and_trains_on_from_where_it_was() -> None:
    model = tiny_model()
    optimizer = schedule_free(model, lr=5e-3)
    for step in range(5):
        fill_gradients(model, step)
        optimizer.step()
    trained = copy.deepcopy(model)
    optimizer.eval()
    weight = model.get_parameter("head.weight")
    at, z = trained.get_parameter("head.weight"), optimizer.state[weight]["z"]
    torch.testing.assert_close(weight, (at - 0.1 * z) / 0.9)  # y = 0.9 x + 0.1 z
    optimizer.train()
    for mine, before in zip(model.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(mine, before, rtol=0, atol=1e-6)  # there and back in fp32
