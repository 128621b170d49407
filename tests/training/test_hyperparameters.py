import copy
from functools import partial

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.training.hyperparameters import Hyperparameters


def sgd(**settings):
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], **{"lr": 0.1, **settings})


def half(step, total_steps):
    return step / total_steps


def test_every_group_gets_its_own_share_of_one_curve():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": [weights[0]], "lr": 0.1, "weight_decay": 0.2}, {"params": [weights[1]], "lr": 0.4}]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    settings = Hyperparameters(
        optimizer, lr=half, momentum=lambda step, total, peak: peak * step / total, weight_decay=half
    )
    assert settings.set_for(5, 10) == 0.05
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.2]
    assert [group["momentum"] for group in optimizer.param_groups] == [0.45, 0.45]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_a_step_s_values_depend_on_nothing_before():
    optimizer = sgd()
    settings = Hyperparameters(optimizer, lr=half)
    settings.set_for(9, 10)
    settings.set_for(5, 10)
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_checkpoint_s_settings_give_way_to_the_configured_ones():
    old = copy.deepcopy(sgd(lr=7.0, momentum=0.5, weight_decay=0.3).state_dict())
    optimizer = sgd(momentum=0.9)
    settings = Hyperparameters(optimizer, lr=half)
    optimizer.load_state_dict(old)
    settings.set_for(5, 10)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.05, 0.9, 0.0)


@pytest.mark.parametrize("name", ["momentum", "weight_decay"])
def test_a_schedule_of_what_an_optimizer_does_not_have_is_refused(name):
    adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    for optimizer in (sgd(), adam):
        with pytest.raises(ConfigurationError, match=rf"{name}_schedule has no effect.*{name}_schedule=none"):
            Hyperparameters(optimizer, lr=half, **{name: lambda *_: 1.0})


@pytest.mark.parametrize(
    ("optimizer", "brought"),
    [
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True), {"nesterov": False}),
        (partial(torch.optim.RMSprop, alpha=0.9), {"alpha": 0.5}),
        (partial(torch.optim.Adafactor, beta2_decay=-0.7, d=2.0), {"beta2_decay": -0.8, "d": 1.0}),
    ],
)
def test_every_setting_of_an_optimizer_is_the_config_s_after_a_resume(optimizer, brought) -> None:
    made = optimizer([torch.nn.Parameter(torch.zeros(2, 2))])
    configured = {name: made.param_groups[0][name] for name in brought}
    settings = Hyperparameters(made, lr=half)
    made.param_groups[0].update(brought)
    settings.set_for(5, 10)
    assert {name: made.param_groups[0][name] for name in brought} == configured
