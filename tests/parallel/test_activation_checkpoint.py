import pytest
import torch

from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.parallel.activation_checkpoint import every_block, none


def llama():
    return Llama(
        width=32,
        num_layers=3,
        num_heads=4,
        feed_forward_width=48,
        vocab_size=61,
        max_context_tokens=16,
        embedding_skip=True,
        value_embedding_layers=(1,),
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


@pytest.mark.parametrize("build", [llama, gpt2])
def test_gradients_equal_those_without_recompute(build):
    nats, gradients = backward(filled(build))
    recomputed_nats, recomputed = backward(every_block(filled(build)))
    assert torch.equal(nats, recomputed_nats)
    assert gradients.keys() == recomputed.keys()
    for name, gradient in gradients.items():
        assert torch.equal(gradient, recomputed[name]), name


def test_every_block_runs_its_own_forward_twice():
    model = filled(llama)
    calls = []
    for index, block in enumerate(model.blocks):
        block.attention_norm.register_forward_hook(lambda module, inputs, output, index=index: calls.append(index))
    backward(every_block(model))
    assert calls == [0, 1, 2, 2, 1, 0]


def test_none_changes_nothing():
    model = filled(llama)
    before = dict(model.named_modules())
    assert none(model) is model
    assert dict(model.named_modules()) == before


def test_names_of_parameters_stay_the_same():
    assert every_block(filled(llama)).state_dict().keys() == filled(llama).state_dict().keys()


def test_fewer_activations_are_kept():
    kept = []
    for transform in (none, every_block):
        model = transform(filled(llama))
        tokens = torch.zeros(2, 16, dtype=torch.int64)
        sizes = {}

        def keep(tensor, sizes=sizes):
            sizes[tensor.data_ptr()] = tensor.nelement() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(tokens, tokens, CrossEntropy())
        kept.append(sum(sizes.values()))
    assert kept[1] < 0.6 * kept[0]


@pytest.mark.slow
def test_recompute_inside_compiled_blocks_keeps_the_gradients():
    _, gradients = backward(filled(llama))
    model = every_block(filled(llama))
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False)
    _, compiled = backward(model)
    for name, gradient in gradients.items():
        torch.testing.assert_close(compiled[name], gradient, atol=1e-4, rtol=1e-4)
