"""What every loss is held to: plain cross-entropy, in sums and gradients.

Tolerances: in fp64 and fp32 the two differ by the order in which sums are taken. In bf16 both round logits and their
gradients to 8 bits at the same places, but chunks round the head's gradient once more for each chunk.
"""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch.nn import functional as F

from lmtrain.losses.cross_entropy import CrossEntropy

VALUES = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-6}
GRADIENTS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}


@dataclass
class Head:
    """A head as models hand it to losses."""

    weight: torch.Tensor
    soft_cap: float | None = None
    rounding: None = None

    @property
    def product_weight(self):
        return self.weight

    def __call__(self, hidden):
        scores = F.linear(hidden, self.weight)
        if self.soft_cap is None:
            return scores
        scores = scores if scores.dtype == torch.float64 else scores.float()
        return self.soft_cap * torch.tanh(scores / self.soft_cap)


def batch(
    *, num_batch=2, num_tokens=8, width=16, vocab_size=31, num_ignored=5, dtype=torch.float32, soft_cap=None, seed=0
):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_batch, num_tokens, width, generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn(vocab_size, width, generator=generator) * 0.5).to(dtype).requires_grad_()
    targets = torch.randint(vocab_size, (num_batch, num_tokens), generator=generator)
    targets.view(-1)[torch.randperm(targets.numel(), generator=generator)[:num_ignored]] = -100
    return Head(weight, soft_cap), hidden, targets


@st.composite
def cases(draw, *, soft_caps=(None, 3.0, 30.0)):
    """Draw a batch and a z-loss weight."""
    options = {
        "num_batch": draw(st.integers(1, 3)),
        "num_tokens": draw(st.integers(1, 40)),
        "width": draw(st.sampled_from((1, 8, 24))),
        "vocab_size": draw(st.sampled_from((2, 31, 257))),
        "num_ignored": draw(st.sampled_from((0, 1, 7, 1000))),
        "soft_cap": draw(st.sampled_from(soft_caps)),
        "seed": draw(st.integers(0, 2**16)),
    }
    return options, draw(st.sampled_from((0.0, 1e-4, 0.1)))


def check_against_plain(loss, inputs, *, values=None, gradients=None, scale=0.37):
    """Hold a loss to the plain one with the same z-loss, ignored id and inputs."""
    head, hidden, targets = inputs
    plain = CrossEntropy(z_loss_weight=loss.z_loss_weight, ignore_index=loss.ignore_index)
    expected, total = plain(head, hidden, targets), loss(head, hidden, targets)
    values = VALUES[hidden.dtype] if values is None else values
    gradients = GRADIENTS[hidden.dtype] if gradients is None else gradients
    assert total.objective.dtype == expected.objective.dtype
    torch.testing.assert_close(total.objective, expected.objective, rtol=values, atol=values * targets.numel())
    torch.testing.assert_close(total.nats, expected.nats, rtol=values, atol=values * targets.numel())
    assert total.nats.dtype == torch.float64
    assert not total.nats.requires_grad
    assert total.num_tokens.dtype == torch.int64
    assert total.num_tokens == expected.num_tokens
    wanted = torch.autograd.grad(expected.objective * scale, (hidden, head.weight))
    found = torch.autograd.grad(total.objective * scale, (hidden, head.weight))
    for gradient, correct in zip(found, wanted, strict=True):
        assert gradient.dtype == correct.dtype
        difference = (gradient.double() - correct.double()).abs().max().item()
        assert difference <= gradients * max(correct.abs().max().item(), 1e-3), difference
    with torch.no_grad():
        alone = loss(head, hidden, targets)
    assert not alone.objective.requires_grad
    torch.testing.assert_close(alone.nats, expected.nats, rtol=values, atol=values * targets.numel())
