import torch

from lmtrain.losses.log_probs import SequenceLogProbs
from tests.adapters.test_low_rank import small
from tests.interop.hugging_face import tokens


def test_each_sequence_has_the_sum_of_its_valid_targets() -> None:
    model, ids = small(), tokens()
    targets = ids[:, 1:].clone()
    targets[0, :5] = targets[1, 9:] = -100
    total = model(ids[:, :-1], targets, SequenceLogProbs())
    chosen = model(ids[:, :-1]).double().log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    expected = torch.stack([chosen[0, 5:].sum(), chosen[1, :9].sum()])
    torch.testing.assert_close(total.objective.double(), expected, rtol=1e-6, atol=1e-5)  # scored in fp32
    assert int(total.num_tokens) == (targets != -100).sum()
    torch.testing.assert_close(total.nats, -expected.sum(), rtol=1e-6, atol=1e-5)
