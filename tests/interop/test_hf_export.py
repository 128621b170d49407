"""The reference is transformers: it loads what is written and computes alike; imported weights come back to the bit."""

import json

import pytest
import torch

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.inference.sampling import Sampling, generate
from lmtrain.interop.hf_export import CardFacts, ModelToExport, export_config, export_folder
from lmtrain.interop.model_settings import node_of
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.rope import LinearRopeScaling, RopeScaling
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from tests.inference.cached import noisy
from tests.interop.hugging_face import imported, tokens
from tests.tokenizers import layouts

SMALL = {
    "width": 32,
    "num_layers": 2,
    "num_heads": 4,
    "feed_forward_width": 48,
    "vocab_size": 288,
    "max_context_tokens": 64,
    "init_std": 0.2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_token": 2}
# what a person calls it: (model_type of transformers, settings)
OURS = {
    "gpt2": ("gpt2", {"feed_forward_width": None}),
    "gpt2, another inner width": ("gpt2", {}),
    "gpt2, exact gelu": ("gpt2", {"gelu_approximate": "none"}),
    "gpt2, no biases": ("gpt2", {"biases": False}),
    "llama": ("llama", {}),
    "llama, grouped heads, tied": ("llama", {"num_kv_heads": 2, "tie_embeddings": True}),
    "llama, heads of their own width": ("llama", {"head_width": 16}),
    "llama, a width that heads do not divide": ("mistral", {"width": 38, "head_width": 16}),
    "llama 3 rope": ("llama", {"rope_scaling": RopeScaling(factor=8.0, original_context_tokens=16)}),
    "llama linear rope": ("llama", {"rope_scaling": LinearRopeScaling(factor=2.0), "rope_base": 10_000.0}),
    "mistral": ("mistral", {"window_tokens": 7}),
    "llama, some windows": ("smollm3", {"window_tokens": 7, "window_pattern": "SL"}),
    "qwen3": ("qwen3", {"qk_norm": True, "head_width": 16, "norm_eps": 1e-6}),
    "qwen3, some windows": ("qwen3", {"qk_norm": True, "window_tokens": 5, "window_pattern": "SL"}),
    "mixtral": ("mixtral", {"experts": Experts(**EXPERTS)}),
    "mixtral, windows": ("mixtral", {"experts": Experts(**EXPERTS), "window_tokens": 6}),
    "olmoe": (
        "olmoe",
        {"experts": Experts(**EXPERTS, normalize_weights=False), "qk_norm": True, "qk_norm_over": "width"},
    ),
    "qwen3 moe": ("qwen3_moe", {"experts": Experts(**EXPERTS), "qk_norm": True, "num_kv_heads": 2}),
}


def settings_of(name):
    """Return one of OURS as a config node."""
    model_type, own = OURS[name]
    node = node_of(GPT2 if model_type == "gpt2" else Llama, **(SMALL | own))
    for key, part in node.items():
        if isinstance(part, RopeScaling | LinearRopeScaling | Experts):
            node[key] = node_of(type(part), **vars(part))
    return node


def random_model(name):
    """Return one of OURS with random weights, norms included."""
    model_type, own = OURS[name]
    return noisy((GPT2 if model_type == "gpt2" else Llama)(**(SMALL | own)))


def to_export(model, settings, **changes):
    """Return what a run would hand over."""
    weights = model.state_dict()
    facts = CardFacts(name="a", num_parameters=1, num_active_parameters=1, context_tokens=64, step=2, tokens=512)
    described = {
        "settings": settings,
        "weights": weights.__getitem__,
        "dtype_of": lambda name: weights[name].dtype,
        "tokenizer": ByteLevelTokenizer(vocab_size=257),
        "facts": facts,
    }
    return ModelToExport(**(described | changes))


def exported(name, folder, **options):
    """Export one of OURS and return it."""
    model = random_model(name)
    export_folder(to_export(model, settings_of(name)), folder, **options)
    return model


def load(folder):
    """Load a folder as a person would."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto", experts_implementation="eager").eval()


@pytest.mark.parametrize("name", OURS)
def test_transformers_loads_it_and_computes_and_writes_the_same(name, tmp_path):
    model = exported(name, tmp_path / "out")
    theirs = load(tmp_path / "out")
    assert theirs.config.model_type == OURS[name][0]
    torch.testing.assert_close(theirs(tokens()).logits, model(tokens()), atol=2e-5, rtol=1e-4)
    prompt = tokens(8)[:1]
    greedy = theirs.generate(prompt, max_new_tokens=24, do_sample=False, eos_token_id=None)
    assert torch.equal(greedy, generate(model, prompt, num_new_tokens=24, sampling=Sampling(temperature=0.0)))


@pytest.mark.parametrize("name", OURS)
def test_what_was_exported_comes_back_to_the_bit(name, tmp_path):
    before = exported(name, tmp_path / "out").state_dict()
    after = imported(tmp_path / "out", tmp_path / "in").state_dict()
    if name == "gpt2, no biases":  # zeros in transformers, which has no GPT-2 without them
        assert not any(tensor.any() for key, tensor in after.items() if key.endswith("bias"))
        after = {key: after[key] for key in before}
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())


def ends_of(tokenizer, out, **changes):
    """Export with a tokenizer, and return the ends in both configs as transformers reads them."""
    from transformers import AutoConfig, GenerationConfig

    export_folder(to_export(random_model("llama"), settings_of("llama"), tokenizer=tokenizer, **changes), out)
    return [kind.from_pretrained(out).eos_token_id for kind in (AutoConfig, GenerationConfig)]


def test_generation_stops_at_the_end_of_a_turn_too(tmp_path):
    own = ByteLevelTokenizer(vocab_size=288, chat=True)
    ends = [own.end_of_text_id, own.special_tokens["<|assistant_end|>"]]
    assert ends_of(own, tmp_path / "own") == [ends, ends]
    for layout, end in ((layouts.qwen, "<|im_end|>"), (layouts.llama_3, "<|eot_id|>")):
        folder = layout(tmp_path / end)
        tokenizer = load_tokenizer(folder)
        ends = [tokenizer.end_of_text_id, tokenizer.special_tokens[end]]
        assert ends_of(tokenizer, tmp_path / f"{end}-out") == [ends, ends]
        given = {"eos_token_id": tokenizer.end_of_text_id, "temperature": 0.5, "do_sample": True}
        (folder / "generation_config.json").write_text(json.dumps(given))
        assert ends_of(tokenizer, tmp_path / f"{end}-base", companions=folder) == [ends, ends]
        kept = json.loads((tmp_path / f"{end}-base/generation_config.json").read_text())
        assert kept == given | {"eos_token_id": ends}
        given = json.dumps({"eos_token_id": [7, *reversed(ends)]})
        (folder / "generation_config.json").write_text(given)
        assert ends_of(tokenizer, tmp_path / f"{end}-chat", companions=folder) == [ends, [7, *reversed(ends)]]
        assert (tmp_path / f"{end}-chat/generation_config.json").read_text() == given, "copied as it was"
        (folder / "generation_config.json").write_text("[]")
        with pytest.raises(DataError, match=r"generation_config\.json is damaged"):
            ends_of(tokenizer, tmp_path / f"{end}-damaged", companions=folder)


NOT_THERE = {
    "activation": ({"activation": "relu_squared"}, r"model\.activation=relu_squared: .*model\.activation=swiglu"),
    "bigrams and smear": (
        {"num_bigram_buckets": 64, "embedding_smear": True},
        r"model\.num_bigram_buckets=64, model\.embedding_smear=True: .*_buckets=0 model\.embedding_smear=false",
    ),
    "norm over the width": ({"qk_norm": True, "qk_norm_over": "width"}, r"model\.qk_norm_over=width: .*=head"),
    "norm of the embedding": ({"window_tokens": 4, "embedding_norm": True}, r"model\.embedding_norm=True: .*=false"),
    "weights of experts": (
        {"experts": node_of(Experts, **EXPERTS, normalize_weights=False)},
        r"model\.experts\.normalize_weights=False: .*=true",
    ),
}


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_no_class_of_transformers_computes_is_refused_by_name(name, tmp_path):
    own, message = NOT_THERE[name]
    with pytest.raises(ConfigurationError, match=message):
        export_config(node_of(Llama, **(SMALL | own)), own_code=False)
    if "experts" not in own:
        assert export_config(node_of(Llama, **(SMALL | own)))["model_type"] == "lmtrain", "its own code computes it"


def test_weights_that_are_no_numbers_are_refused_and_nothing_is_left(tmp_path):
    model = random_model("llama")
    with torch.no_grad():
        model.get_parameter("layers.1.self_attention.qkv.weight")[40, 0] = float("nan")
    with pytest.raises(DataError, match=r"model\.layers\.1\.self_attn\.k_proj\.weight in a has 0 infinities and 1 NaN"):
        export_folder(to_export(model, settings_of("llama")), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
