import pytest
import schedulefree
import torch

from lmtrain.training import weight_average as module
from lmtrain.training.weight_average import evaluation_weights, to_training


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


def test_a_sharded_model_forgets_what_it_gathered_whenever_its_weights_are_moved(monkeypatch):
    """Else its root, which evaluation leaves gathered, trains a step with the weights for evaluation."""
    weight, optimizer = trained()
    seen = []
    monkeypatch.setattr(module, "reshard", lambda model: seen.append((model, weight.detach().clone())))
    model, for_training = torch.nn.Identity(), weight.detach().clone()
    with evaluation_weights([optimizer], model):
        for_evaluation = weight.detach().clone()
    assert [forgetful for forgetful, _ in seen] == [model, model]
    assert torch.equal(seen[0][1], for_evaluation)
    torch.testing.assert_close(seen[1][1], for_training)
    with evaluation_weights([torch.optim.SGD([weight])], model):
        pass
    assert len(seen) == 2, "no weight was moved"
