import torch

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.head import Loss, LossTotal, OutputHead, with_penalty


def test_a_penalty_is_differentiated_and_is_no_nats():
    weight = torch.ones((), requires_grad=True)
    total = with_penalty(LossTotal(2 * weight, nats=torch.tensor(7.0), num_tokens=torch.tensor(3)), 5 * weight)
    total.objective.backward()
    assert (total.objective.item(), total.nats.item(), total.num_tokens.item()) == (7.0, 7.0, 3)
    assert weight.grad == 7.0


def test_losses_take_the_models_own_head():
    head = OutputHead(torch.randn(11, 4))
    for loss in (CrossEntropy(), ChunkedCrossEntropy()):
        assert isinstance(loss, Loss)
        total = loss(head, torch.randn(1, 3, 4), torch.tensor([[1, -100, 2]]))
        assert isinstance(total, LossTotal)
        assert total.num_tokens == 2
