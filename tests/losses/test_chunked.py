import pytest
import torch
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from tests.losses import two_ranks
from tests.losses.loss_checks import batch, cases, check_against_plain
from tests.ranks import on_ranks


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sums_and_gradients_are_those_of_the_plain_loss(dtype):
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(cases())
    def check(case):
        options, z_loss_weight = case
        for chunk_tokens in (1, 7, 4096):
            loss = ChunkedCrossEntropy(z_loss_weight=z_loss_weight, chunk_tokens=chunk_tokens)
            check_against_plain(loss, batch(**options, dtype=dtype))

    check()


def test_gradients_are_the_slopes_of_the_objective():
    head, hidden, targets = batch(dtype=torch.float64, soft_cap=2.0)
    loss = ChunkedCrossEntropy(z_loss_weight=0.1, chunk_tokens=3)
    gradients = torch.autograd.grad(loss(head, hidden, targets).objective, (hidden, head.weight))
    step = 1e-6
    with torch.no_grad():
        for tensor, gradient in zip((hidden, head.weight), gradients, strict=True):
            direction, start = torch.randn_like(tensor), tensor.clone()
            objectives = []
            for sign in (1, -1):
                tensor.copy_(start + sign * step * direction)
                objectives.append(loss(head, hidden, targets).objective)
            tensor.copy_(start)
            slope = (objectives[0] - objectives[1]) / (2 * step)
            torch.testing.assert_close(slope, (gradient * direction).sum(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("z_loss_weight", [0.0, 1e-2])
def test_autocast_rounds_where_the_plain_loss_does_and_keeps_fp32_gradients(z_loss_weight):
    inputs = batch(num_batch=4, num_tokens=32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = ChunkedCrossEntropy(z_loss_weight=z_loss_weight, chunk_tokens=16)
        check_against_plain(loss, inputs, gradients=2e-2)


def test_a_tied_weight_gets_the_gradients_of_both_its_uses():
    head, _, targets = batch(width=16)
    gradients = []
    for loss in (CrossEntropy(z_loss_weight=0.1), ChunkedCrossEntropy(z_loss_weight=0.1, chunk_tokens=4)):
        hidden = torch.nn.functional.embedding(targets.clamp(min=0), head.weight).sin()
        gradients.append(torch.autograd.grad(loss(head, hidden, targets).objective, head.weight)[0])
    torch.testing.assert_close(gradients[1], gradients[0])


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return result


@pytest.mark.parametrize("soft_cap", [None, 20.0])
@pytest.mark.parametrize("autocast", [False, True])
def test_no_tensor_holds_the_logits_of_more_than_a_chunk(soft_cap, autocast):
    vocab_size, num_tokens, width = 512, 2 * 256, 8
    inputs = batch(num_tokens=256, width=width, vocab_size=vocab_size, soft_cap=soft_cap)
    largest = {}
    for loss in (CrossEntropy(z_loss_weight=0.1), ChunkedCrossEntropy(z_loss_weight=0.1, chunk_tokens=32)):
        with LargestTensor() as mode, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss(*inputs).objective.backward()
            with torch.no_grad():
                loss(*inputs)
        largest[type(loss)] = mode.numel
    assert largest[CrossEntropy] == num_tokens * vocab_size
    assert largest[ChunkedCrossEntropy] == 32 * vocab_size  # more than the head's and the states' gradients


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_into_one_graph_it_gives_the_same(autocast):
    torch._dynamo.reset()
    head, hidden, targets = batch(num_batch=4, num_tokens=16, vocab_size=61)
    loss = ChunkedCrossEntropy(z_loss_weight=0.01, chunk_tokens=24)
    compiled = torch.compile(
        lambda hidden, targets: loss(head, hidden, targets), fullgraph=True, dynamic=False, backend="aot_eager"
    )
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        expected, total = loss(head, hidden, targets), compiled(hidden, targets)
    torch.testing.assert_close(total.objective, expected.objective, rtol=1e-3 if autocast else 1e-5, atol=0)
    torch.testing.assert_close(total.nats, expected.nats, rtol=1e-3 if autocast else 1e-5, atol=0)
    wanted = torch.autograd.grad(expected.objective * 0.5, (hidden, head.weight))
    found = torch.autograd.grad(total.objective * 0.5, (hidden, head.weight))
    for gradient, correct in zip(found, wanted, strict=True):
        tolerance = 3e-2 if autocast else 1e-5
        torch.testing.assert_close(gradient, correct, rtol=tolerance, atol=tolerance * correct.abs().max().item())


@pytest.mark.distributed
@pytest.mark.slow
def test_replicated_or_sharded_over_two_ranks_its_gradients_are_those_of_one_process(tmp_path):
    """Tied and untied heads, under DDP and FSDP2, in fp32 and (FSDP2) bf16."""
    on_ranks(two_ranks.main, folder=tmp_path)
