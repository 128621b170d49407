from pathlib import Path

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.models.llama import Llama
from lmtrain.parallel.outer_step import OuterStep, fragments_of
from tests.ranks import on_ranks

ROUNDS = 3


def model() -> Llama:
    built = Llama(width=16, num_layers=4, num_heads=2, feed_forward_width=32, vocab_size=67, max_context_tokens=16)
    built.initialize_weights(torch.Generator().manual_seed(0))
    return built


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def train_apart(weights, *, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + rank)
    with torch.no_grad():
        for weight in weights:
            weight += torch.randn(weight.shape, generator=generator)


def mean_of_ranks(values: torch.Tensor) -> torch.Tensor:
    both = [torch.empty_like(values) for _ in range(2)]
    torch.distributed.all_gather(both, values)
    return torch.stack(both).mean(0)


def _rank(rank: int) -> None:
    for lr, momentum in ((1.0, 0.0), (0.7, 0.9)):
        ours = model()
        weights = list(ours.parameters())
        start = flat(weights)
        outer = OuterStep(every_steps=2, num_fragments=1, lr=lr, momentum=momentum, delta="fp32")
        outer.start(ours)
        velocity = torch.zeros_like(start)
        for step in range(2 * ROUNDS):
            train_apart(weights, rank=rank, step=step)
            own = flat(weights)
            mean = mean_of_ranks(own)
            outer.after(step)
            if step % 2 == 0:
                assert torch.equal(flat(weights), own), "no meeting in the middle of a round"
                continue
            delta = start - mean
            velocity = momentum * velocity + delta  # Sutskever et al. 2013, as in torch.optim.SGD
            start = start - lr * (delta + momentum * velocity)
            torch.testing.assert_close(flat(weights), start, rtol=1e-5, atol=1e-5)
            if momentum == 0:
                torch.testing.assert_close(flat(weights), mean, rtol=1e-6, atol=1e-6)
    _meet_in_turns(rank)


def _meet_in_turns(rank: int) -> None:
    ours = model()
    outer = OuterStep(every_steps=6, num_fragments=3, lr=1.0, momentum=0.0, delta="bf16")
    outer.start(ours)
    fragments = fragments_of(ours, num_fragments=3)
    met: list[list[int]] = []
    for step in range(12):
        train_apart(ours.parameters(), rank=rank, step=step)
        before = [flat(fragment) for fragment in fragments]
        outer.after(step)
        met.append([i for i, old in enumerate(before) if not torch.equal(old, flat(fragments[i]))])
    assert met == [[], [2], [], [1], [], [0]] * 2, "each once in six steps"
    outer.after(12, is_last=True)
    for fragment in fragments:
        values = flat(fragment)
        assert torch.equal(values, mean_of_ranks(values)), "all are the same after the last step"


@pytest.mark.distributed
def test_workers_meet_by_nesterov_on_their_mean_delta_fragment_by_fragment(tmp_path: Path) -> None:
    on_ranks(_rank, folder=tmp_path)


def test_fragments_share_the_model_out_evenly_and_wholly():
    ours = model()
    fragments = fragments_of(ours, num_fragments=3)
    dealt = [weight for fragment in fragments for weight in fragment]
    assert {*dealt} == {*ours.parameters()}
    assert len(dealt) == len({*dealt})
    sizes = [sum(weight.numel() for weight in fragment) for fragment in fragments]
    assert max(sizes) - min(sizes) <= max(sum(w.numel() for w in block.parameters()) for block in ours.blocks)
    block = {*ours.blocks[0].parameters()}
    assert sum(not block.isdisjoint(fragment) for fragment in fragments) == 1, "a block is in one fragment"


def test_more_fragments_than_parts_are_refused():
    with pytest.raises(
        ConfigurationError, match=r"num_fragments=8 is more than the model's 7 layers and tables; .* 7\."
    ):
        fragments_of(model(), num_fragments=8)


def test_evaluation_sees_the_global_weights_and_training_goes_on_with_the_own_ones():
    ours = model()
    outer = OuterStep(every_steps=2, num_fragments=1, lr=0.7, momentum=0.9, delta="fp32")
    outer.start(ours)
    at_start = flat(ours.parameters())
    train_apart(ours.parameters(), rank=0, step=0)
    trained = flat(ours.parameters())
    for _ in range(2):  # a second time changes nothing
        outer.eval()
        assert torch.equal(flat(ours.parameters()), at_start)
    first = next(iter(ours.parameters()))
    assert torch.equal(flat(outer.own()), flat([weight for _, weight in _by_fragment(outer, trained, ours)]))
    assert torch.equal(outer.global_of(first), first)
    for _ in range(2):
        outer.train()
        assert torch.equal(flat(ours.parameters()), trained)


def _by_fragment(outer: OuterStep, values: torch.Tensor, ours: Llama):
    """Give this worker's values in the order of its fragments."""
    sizes = [weight.numel() for weight in ours.parameters()]
    pieces = dict(zip(ours.parameters(), values.split(sizes), strict=True))
    return [(weight, pieces[weight]) for fragment in fragments_of(ours, num_fragments=1) for weight in fragment]
