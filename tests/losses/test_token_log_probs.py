import torch

from lmtrain.losses.log_probs import TokenLogProbs
from tests.adapters.test_low_rank import small
from tests.interop.hugging_face import tokens


def test_each_valid_target_has_its_log_probability_at_the_temperature() -> None:
    model, ids = small(), tokens()
    targets = ids[:, 1:].clone()
    targets[0, :5] = -100
    total = model(ids[:, :-1], targets, TokenLogProbs(temperature=0.7))
    logits = model(ids[:, :-1]).double() / 0.7
    expected = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    expected[0, :5] = 0
    torch.testing.assert_close(total.objective.double(), expected, rtol=1e-6, atol=1e-5)  # scored in fp32
    assert int(total.num_tokens) == (targets != -100).sum()
    total.objective.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
