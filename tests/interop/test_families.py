"""Each family against transformers: logits, gradients, optimizer steps, documents, greedy text, export, counts."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.inference.cache import cached_sdpa
from lmtrain.inference.engine import TextEngine
from lmtrain.inference.generation import Request
from lmtrain.inference.sampling import Sampling
from lmtrain.interop.hf_export import export_folder
from lmtrain.interop.hf_import import read_facts
from lmtrain.interop.model_settings import build
from lmtrain.interop.peft_adapters import add_changes, open_peft
from lmtrain.interop.tensor_map import map_tensors
from lmtrain.models.rope import RotaryEmbedding
from tests.interop.families import FAMILIES, counted_products, random_model, saved_parameters
from tests.interop.hugging_face import imported, weights_of
from tests.interop.test_hf_export import load, to_export

SAME = {"atol": 1e-9, "rtol": 1e-9}  # fp64
SEEDS = range(3)
DENSE = ("llama", "mistral", "qwen2", "smollm3", "olmo2", "olmo3", "granite", "granitemoehybrid", "gemma2",
         "gemma3_text", "glm4", "phi3", "nemotron_h")  # fmt: skip


def ids(num=50, seed=3):
    return torch.randint(257, (2, num), generator=torch.Generator().manual_seed(seed))


# A draw of each family is checked with every change, the others by `make test-slow`.
DRAWS = [
    pytest.param((name, seed), id=f"{name}-{seed}", marks=[pytest.mark.slow] if seed != SEEDS[0] else [])
    for name in FAMILIES
    for seed in SEEDS
]


@pytest.fixture(scope="module", params=DRAWS)
def pair(request, tmp_path_factory):
    """Return a model of transformers, ours imported from its folder, and the two folders."""
    name, seed = request.param
    theirs, folder = random_model(name, seed), tmp_path_factory.mktemp("family")
    theirs.save_pretrained(folder / "hf")
    from lmtrain.interop.tokenizer_files import write_tokenizer
    from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

    write_tokenizer(ByteLevelTokenizer(vocab_size=257), folder / "hf", max_context_tokens=64)
    return theirs, imported(folder / "hf", folder / "in"), folder


class InDoublePrecision(TorchFunctionMode):
    """Compute in fp64 what a model asks for in fp32: norms, rotations, routers, states."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        wide = {key: self.widened(value) for key, value in (kwargs or {}).items()}
        return (torch.Tensor.double if func is torch.Tensor.float else func)(*map(self.widened, args), **wide)

    @staticmethod
    def widened(value):
        return torch.float64 if value is torch.float32 else value


def doubled(theirs):
    """Return a model of transformers in fp64, its constants too."""
    torch.set_default_dtype(torch.float64)
    try:
        with InDoublePrecision():
            copied = type(theirs)(theirs.config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    copied.load_state_dict(theirs.state_dict())
    return copied


@pytest.fixture(scope="module")
def exact(pair):
    """Return both models in fp64.

    In fp32 rounding can be as large as an error: AdamW's first steps divide a gradient of nothing but rounding by
    itself, a gate at its limit or a tie of experts passes a gradient or none, and a norm multiplies a state of almost
    nothing. In fp64 none of it comes near the tolerance, so one holds for every family.
    """
    theirs, ours, _ = pair
    ours = copy.deepcopy(ours).double()
    with InDoublePrecision():
        for module in ours.modules():
            if isinstance(module, RotaryEmbedding):
                module.initialize_weights()
    return doubled(theirs), ours


def compare_parameters(theirs, ours, model_type, get):
    """Compare what `get` takes of each parameter."""
    of_theirs, of_ours = saved_parameters(theirs, get), dict(ours.named_parameters())
    for tensor in map_tensors(ours, model_type):
        for part in tensor.parts if tensor.name in of_ours else ():
            actual = part.of(get(of_ours[tensor.name]))
            expected = of_theirs[part.name].view(actual.shape)
            scale = max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(
                actual / scale, expected / scale, **SAME, msg=lambda text, n=part.name: f"{n}: {text}"
            )


def test_logits_and_every_gradient(exact):
    theirs, ours = exact
    for num in (12, 50):
        with InDoublePrecision():
            logits, expected = ours(ids(num)), theirs(ids(num)).logits
            assert expected.abs().max() > 0.2
            torch.testing.assert_close(logits, expected, **SAME)
            for model, made in ((ours, logits), (theirs, expected)):
                model.zero_grad()
                made.square().mean().backward()
        compare_parameters(theirs, ours, theirs.config.model_type, lambda parameter: parameter.grad)


def test_five_steps_of_adamw(exact):
    theirs, ours = copy.deepcopy(exact)
    for model in (theirs, ours):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(5):
            tokens = ids(24, seed=step)
            with InDoublePrecision():
                made = model(tokens)
                logits = made if isinstance(made, torch.Tensor) else made.logits
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
    compare_parameters(theirs, ours, theirs.config.model_type, lambda parameter: parameter.data)


def test_fp32_rounds_no_more_than_transformers(pair, exact):
    theirs, ours, _ = pair
    with torch.no_grad():
        with InDoublePrecision():
            expected = exact[0](ids()).logits
        error_of_theirs, error = ((made - expected).abs().max() for made in (theirs(ids()).logits, ours(ids())))
    assert error <= max(2 * error_of_theirs, 5e-6 * expected.abs().max())


def test_a_changed_document_moves_others_by_nothing(pair):
    _, ours, _ = pair
    documents = torch.tensor([[0] * 10 + [1] * 25 + [2] * 15] * 2)
    tokens, changed = ids(), ids()
    changed[:, 10:35] = (changed[:, 10:35] + 7) % 257
    before, after = ours(tokens, documents=documents), ours(changed, documents=documents)
    for kept in (slice(0, 10), slice(35, 50)):
        assert torch.equal(before[:, kept], after[:, kept])
    assert not torch.equal(before[:, 10:35], after[:, 10:35])


def test_greedy_text_with_a_cache(pair):
    theirs, ours, folder = pair
    cached = build(read_facts(folder / "in")["settings"], attention=cached_sdpa)
    cached.to_empty(device="cpu")
    cached.initialize_weights(torch.Generator().manual_seed(1))
    cached.load_state_dict(ours.state_dict())
    prompt = ids(9)[:1]
    expected = theirs.generate(prompt, max_new_tokens=40, do_sample=False, eos_token_id=None)[0, 9:]
    request = Request(prompt=prompt[0].tolist(), num_new_tokens=40, sampling=Sampling(temperature=0.0))
    (written,) = TextEngine(cached, [b"a"] * cached.vocab_size).write([request])
    assert written.new_tokens == expected.tolist()


def test_an_export_loads_in_transformers(pair, exact):
    theirs, ours, folder = pair
    settings = read_facts(folder / "in")["settings"]
    export_folder(to_export(ours, settings, companions=folder / "in" / "original"), folder / "out")
    before, after = weights_of(folder / "hf"), weights_of(folder / "out")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again = load(folder / "out")
    assert type(again) is type(theirs)
    with InDoublePrecision():
        torch.testing.assert_close(doubled(again)(ids()).logits, exact[0](ids()).logits, **SAME)


def test_parameters_and_flops_are_those_of_transformers(pair):
    theirs, ours, _ = pair
    shape = ours.shape()
    assert shape.num_parameters == theirs.num_parameters()
    products = counted_products(theirs, lambda: theirs(ids(24)))
    attending = [layer for layer in shape.attention if layer.state_flops is None]
    whole = replace(shape, attention=tuple(replace(layer, window_tokens=None) for layer in attending))
    expected = 2 * 24 * flops_per_token(whole, 24).palm  # forward and backward; eager attention counts hidden pairs
    assert 3 * products == expected


def test_an_adapter_of_peft_is_added_to_every_layer(pair):
    from peft import LoraConfig, get_peft_model

    theirs, ours, folder = pair
    torch.manual_seed(5)
    if theirs.config.model_type not in DENSE:
        pytest.skip("experts and states have no adapters")
    of_mamba = ["in_proj", "k_proj", "o_proj", "up_proj"]  # peft refuses out_proj there
    target = of_mamba if theirs.config.model_type == "nemotron_h" else "all-linear"
    config = LoraConfig(r=2, target_modules=target, init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = get_peft_model(copy.deepcopy(theirs), config).eval()
    adapted.save_pretrained(folder / "adapter")
    merged = copy.deepcopy(ours)
    with torch.no_grad():
        add_changes(merged, open_peft(folder / "adapter"))
        expected = adapted(ids()).logits
        assert not torch.allclose(expected, theirs(ids()).logits, atol=1e-2)
        torch.testing.assert_close(merged(ids()), expected, atol=1e-4, rtol=1e-4)  # merged in fp32, not added
