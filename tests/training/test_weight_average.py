"""The average of the weights, and the weights for evaluation."""

import pytest
import schedulefree
import torch

from lmtrain.training.weight_average import WeightAverage, evaluation_weights, to_training
from tests.optim.models import tiny_model


def started(decay=0.9):
    model, average = tiny_model(), WeightAverage(decay=decay)
    average.start(model)
    return model, average


def values(module):
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def move(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))


def test_it_is_torch_s_own_average_once_the_decay_is_reached():
    model, average = started(decay=0.9)
    theirs = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    theirs.update_parameters(model)  # the first copies
    for step in range(200, 205):
        move(model, step)
        average.update(model, step=step)
        theirs.update_parameters(model)
    for name, parameter in values(theirs.module).items():
        torch.testing.assert_close(average.get_parameter(name), parameter)


def test_the_first_steps_keep_less_of_the_average():
    model, average = started(decay=0.999)
    expected = values(model)
    for step, decay in enumerate([1 / 10, 2 / 11, 3 / 12]):
        move(model, step)
        average.update(model, step=step)
        expected = {name: decay * expected[name] + (1 - decay) * value for name, value in values(model).items()}
    for name, value in expected.items():
        torch.testing.assert_close(average.get_parameter(name), value)


def test_a_model_has_the_average_for_a_while_and_then_its_own_to_the_last_bit():
    model, average = started()
    move(model, 1)
    own, averaged = values(model), values(average)
    with average.in_place_of(model):
        assert all(torch.equal(parameter, averaged[name]) for name, parameter in model.named_parameters())
    assert all(torch.equal(parameter, own[name]) for name, parameter in model.named_parameters())
    assert all(torch.equal(parameter, averaged[name]) for name, parameter in average.named_parameters())


def test_weights_in_bf16_are_averaged_in_fp32():
    model = tiny_model().bfloat16()
    average = WeightAverage(decay=0.999)
    average.start(model)
    before = values(average)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.0625)
    average.update(model, step=10**6)
    moved = [value - before[name] for name, value in values(average).items()]
    assert all(value.dtype == torch.float32 for value in moved)
    assert all((value > 0).all() for value in moved), "bf16 would lose steps as small"


def trained():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = schedulefree.AdamWScheduleFree([weight], lr=0.1)
    to_training([optimizer])
    for _ in range(3):
        weight.grad = torch.tensor([1.0, 2.0, -1.0])
        optimizer.step()
    return weight, optimizer


def test_an_optimizer_of_two_points_holds_the_one_for_evaluation_meanwhile():
    weight, optimizer = trained()
    for_training = weight.detach().clone()
    with evaluation_weights([optimizer]):
        assert not torch.equal(weight, for_training)
        with pytest.raises(Exception, match="train mode"):
            optimizer.step()
    torch.testing.assert_close(weight.detach(), for_training)
    optimizer.step()
