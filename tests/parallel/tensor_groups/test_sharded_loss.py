"""One shard is the whole vocabulary; shards of several ranks are in tests/parallel/test_tensor.py."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.head import LossTotal, OutputHead
from lmtrain.parallel.tensor_parallel import score_shards

VOCAB_SIZE, WIDTH = 13, 6


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCAB_SIZE, WIDTH, generator=generator, requires_grad=True)
    hidden = torch.randn(2, 5, WIDTH, generator=generator, requires_grad=True)
    targets = torch.randint(VOCAB_SIZE, (2, 5), generator=generator)
    targets[1, 2:] = -100
    return weight, hidden, targets


def sharded(loss: CrossEntropy | ChunkedCrossEntropy, soft_cap: float | None) -> tuple[LossTotal, list[torch.Tensor]]:
    weight, hidden, targets = operands()
    assert dist.group.WORLD is not None
    total = score_shards(weight, hidden, targets, loss, soft_cap=soft_cap, first_row=0, ranks=dist.group.WORLD)
    return total, list(torch.autograd.grad(3 * total.objective, [weight, hidden]))


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("z_loss_weight", [0.0, 0.1])
@pytest.mark.parametrize("chunk_tokens", [None, 3])
def test_sums_and_gradients_are_those_of_plain_cross_entropy(
    soft_cap: float | None, z_loss_weight: float, chunk_tokens: int | None
) -> None:
    weight, hidden, targets = operands()
    plain = CrossEntropy(z_loss_weight=z_loss_weight)
    expected = plain(OutputHead(weight, soft_cap), hidden, targets)
    gradients = torch.autograd.grad(3 * expected.objective, [weight, hidden])
    loss = ChunkedCrossEntropy(z_loss_weight=z_loss_weight, chunk_tokens=chunk_tokens) if chunk_tokens else plain
    total, found = sharded(loss, soft_cap)
    torch.testing.assert_close(list(total), list(expected), rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(found, list(gradients), rtol=2e-6, atol=2e-6)


def test_a_shard_without_the_target_has_its_logits_alone() -> None:
    """Rows 4 to 12 of the vocabulary, as a second rank has them: no target below row 4 is theirs."""
    weight, hidden, targets = operands()
    assert dist.group.WORLD is not None
    total = score_shards(
        weight[4:], hidden, targets, CrossEntropy(), soft_cap=None, first_row=4, ranks=dist.group.WORLD
    )
    logits = hidden @ weight[4:].T
    here = targets >= 4
    aimed = logits.gather(2, (targets - 4).clamp(min=0)[..., None]).squeeze(2)
    largest = logits.amax(dim=-1)
    expected = (logits.logsumexp(dim=-1) - torch.where(here, aimed, largest))[targets != -100].sum()
    torch.testing.assert_close(total.objective, expected)
