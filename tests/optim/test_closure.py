import torch

from lmtrain.optim.closure import loss_of


def test_a_closure_computes_with_gradients_though_a_step_has_none() -> None:
    with torch.no_grad():
        assert loss_of(torch.is_grad_enabled) is True
        assert not torch.is_grad_enabled()


def test_without_a_closure_there_is_no_loss() -> None:
    assert loss_of(None) is None
