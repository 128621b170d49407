from functools import partial

import pytest
import torch

from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.parallel.activation_checkpoint import (
    every_block,
    memory_budget,
    none,
    selective,
)


def llama(num_layers=3):
    return Llama(
        width=32,
        num_layers=num_layers,
        num_heads=4,
        feed_forward_width=48,
        vocab_size=61,
        max_context_tokens=16,
        embedding_skip=True,
        value_embedding_layers=(1,) if num_layers > 1 else (),
    )


def gpt2():
    return GPT2(width=32, num_layers=3, num_heads=4, vocab_size=61, max_context_tokens=16)


def filled(build):
    model = build()
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


def backward(model):
    tokens = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(1))
    total = model(tokens, tokens, CrossEntropy())
    total.objective.backward()
    return total.nats, {name: parameter.grad for name, parameter in model.named_parameters()}


TRANSFORMS = {
    "every_block": every_block,
    "selective": selective,
    "memory_budget": partial(memory_budget, fraction=0.5),
}


@pytest.fixture(params=TRANSFORMS.values(), ids=TRANSFORMS.keys())
def transform(request):
    return request.param


@pytest.mark.parametrize("build", [llama, gpt2])
def test_gradients_equal_those_without_recompute(build, transform):
    nats, gradients = backward(filled(build))
    recomputed_nats, recomputed = backward(transform(filled(build)))
    assert torch.equal(nats, recomputed_nats)
    assert gradients.keys() == recomputed.keys()
    for name, gradient in gradients.items():
        assert torch.equal(gradient, recomputed[name]), name


def test_fewer_activations_are_kept():
    kept = []
    for transform in (none, partial(memory_budget, fraction=0.5), every_block):
        model = transform(filled(llama))
        tokens = torch.zeros(2, 16, dtype=torch.int64)
        sizes = {}

        def keep(tensor, sizes=sizes):
            sizes[tensor.data_ptr()] = tensor.nelement() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(tokens, tokens, CrossEntropy())
        kept.append(sum(sizes.values()))
    assert kept[2] < 0.6 * kept[0]
    assert kept[2] < kept[1] < 0.9 * kept[0]


@pytest.mark.long
def test_recompute_in_blocks_of_the_real_compiler_keeps_the_gradients():
    torch._dynamo.reset()
    one_block = partial(llama, num_layers=1)
    _, gradients = backward(filled(one_block))
    model = selective(filled(one_block))
    model.blocks[0].compile(fullgraph=True, dynamic=False)  # the norm and the loss recompute nothing
    _, compiled = backward(model)
    for name, gradient in gradients.items():
        torch.testing.assert_close(compiled[name], gradient, atol=1e-4, rtol=1e-4)
