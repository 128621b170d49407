"""GGUF files read back by the package itself, and by transformers' own reader of them: the same logits."""

import json

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM

from lmtrain.errors import ConfigurationError
from lmtrain.interop.gguf_file import add_settings, named_tensors, require_computed_there, write_gguf
from lmtrain.interop.gguf_tokenizer import add_tokenizer
from lmtrain.interop.hf_config import write_config
from lmtrain.interop.model_settings import complete
from lmtrain.interop.tokenizer_files import write_tokenizer
from lmtrain.run.compose.compose import compose_config
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.interop import families
from tests.interop.hugging_face import saved, tokens
from tests.interop.llama_cpp import logits_of

# Those with a reader in transformers; the others are held to their tensors alone.
READ_THERE = ("gpt2", "llama", "llama tied, one kv head", "qwen2", "qwen3", "mistral", "qwen3 moe")


def written(name, folder, **settings):
    """Save a random model of transformers and write it as GGUF."""
    if name == "mistral":
        settings["sliding_window"] = None
    model = saved(name, folder, tokenizer=False, **settings)
    write_tokenizer(ByteLevelTokenizer(vocab_size=288, chat=True), folder, max_context_tokens=64)
    config = json.loads((folder / "config.json").read_text())
    out = folder / "a.gguf"
    assert write_gguf(folder, out, name="a") is None
    return model, config, out


@pytest.mark.parametrize("name", READ_THERE)
def test_transformers_computes_the_same_from_the_file(name, tmp_path):
    model, _, out = written(name, tmp_path)
    config = None if name in ("llama", "mistral") else model.config
    # Its reader leaves out GPT-2's context, and the widths of heads and experts: those come from the folder.
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=out.name, config=config)
    torch.testing.assert_close(theirs(tokens()).logits, model(tokens()).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama 3 rope", "olmoe", "mixtral", "llama linear rope"])
def test_every_tensor_is_read_back_to_the_bit(name, tmp_path):
    model, config, out = written(name, tmp_path)
    reader = gguf.GGUFReader(out)
    read = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    expected = dict(named_tensors(tmp_path, config))
    assert read.keys() == expected.keys()
    for key, values in expected.items():
        assert read[key].shape == values.shape
        assert np.array_equal(read[key], values)
    kind = reader.fields["general.architecture"].contents()
    assert reader.fields[f"{kind}.context_length"].contents() == 64
    assert reader.fields["tokenizer.chat_template"].contents().startswith("{{- bos_token -}}")
    assert reader.fields["tokenizer.ggml.tokens"].contents()[256] == "<|end_of_text|>"
    if name == "llama 3 rope":
        plain = 500_000.0 ** -(np.arange(0, 8, 2) / 8)  # of 8 dimensions a head
        np.testing.assert_allclose(plain / read["rope_freqs.weight"], model.model.rotary_emb.inv_freq, rtol=1e-5)


def test_a_file_is_whole_or_absent(tmp_path, monkeypatch):
    saved("llama", tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram"}, "pre_tokenizer": null}')
    with pytest.raises(ConfigurationError, match="not of the byte-level kind"):
        write_gguf(tmp_path, tmp_path / "a.gguf", name="a")
    assert not [path.name for path in tmp_path.iterdir() if "gguf" in path.name]


ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
LINEAR = {**ROPE, "rope_type": "linear", "factor": 2.0}
PARTIAL = {**ROPE, "partial_rotary_factor": 0.5}
FACTORS = {**ROPE, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTORS["original_max_position_embeddings"] = 16
YARN = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LATENT = {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}, "first_k_dense_replace": 1}
BY_LAYER = {"full_attention": LINEAR, "sliding_attention": {**ROPE, "rope_theta": 100.0}}
PLAIN = {"attention_bias": False, "mlp_bias": False, "sliding_window": None, "layer_types": None}
UNTIED, TIED = ({"tie_word_embeddings": is_tied} for is_tied in (False, True))
GEMMA = {**PLAIN, **TIED, "query_pre_attn_scalar": 8, "head_dim": 8, "sliding_window": 4, "num_hidden_layers": 6}
ALL_EXPERTS = {"decoder_sparse_step": 1, "mlp_only_layers": []}
# what a person calls it, and settings that llama.cpp computes
COMPUTED = [
    *(("llama", {**PLAIN, "rope_parameters": rope}) for rope in (ROPE, LINEAR, FACTORS)),
    ("mixtral", {**PLAIN, "rope_parameters": FACTORS}),
    ("qwen2", {**PLAIN, "use_sliding_window": False, "rope_parameters": LINEAR}),
    ("qwen2 moe", {**PLAIN, **UNTIED, **ALL_EXPERTS, "use_sliding_window": False, "rope_parameters": ROPE}
     | {"norm_topk_prob": False, "qkv_bias": True}),
    ("qwen3 moe", {**PLAIN, **ALL_EXPERTS, "norm_topk_prob": True, "rope_parameters": ROPE}),
    ("olmoe", {**PLAIN, **UNTIED, "num_key_value_heads": 4, "norm_topk_prob": False, "rope_parameters": ROPE}),
    ("olmo2", {**PLAIN, **UNTIED, "rope_parameters": LINEAR}),
    ("smollm3", {**PLAIN, **TIED, "use_sliding_window": False, "no_rope_layer_interval": 4, "rope_parameters": ROPE}),
    ("granite", {**PLAIN, "rope_parameters": FACTORS}),
    ("granite moe", {**PLAIN, "rope_parameters": ROPE}),
    ("gemma2", {**GEMMA, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 1.5, "rope_parameters": ROPE}),
    ("gemma3", {**GEMMA, "final_logit_softcapping": None, "rope_parameters": BY_LAYER}),
    ("glm4", {"attention_bias": True, "rope_parameters": PARTIAL}),
    ("phi3", {**PLAIN, "rope_parameters": PARTIAL}),
    ("deepseek v2", {**LATENT, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "q_lora_rank": None}
     | {"num_hidden_layers": 27, "initializer_range": 0.05, "n_shared_experts": 2}),
    ("deepseek v3", {**LATENT, "norm_topk_prob": True, "rope_interleave": True, "n_group": 1, "topk_group": 1}
     | {"q_lora_rank": 8}),
    ("deepseek v3", {**LATENT, "norm_topk_prob": False, "rope_interleave": True, "n_group": 3, "topk_group": 2}
     | {"q_lora_rank": 8, "rope_parameters": ROPE}),
    ("gpt-oss", {"attention_bias": True, "swiglu_limit": 7.0, "sliding_window": 4, "layer_types": None}
     | {"rope_parameters": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0}}),
    ("lfm2", {"conv_bias": False, "block_auto_adjust_ff_dim": True, "block_multiple_of": 8}),
    ("qwen3 next", {**ALL_EXPERTS, "norm_topk_prob": True, "rope_parameters": PARTIAL, "attention_bias": False}
     | {"linear_value_head_dim": 8, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}),
    ("nemotron-h", {"use_bias": False, "mlp_bias": False, "use_conv_bias": True}),
]  # fmt: skip


def written_family(folder, name, settings):
    """Write a random model of transformers as GGUF, and return it."""
    model = families.random_model(name, 1, **settings)
    model.save_pretrained(folder)
    write_tokenizer(ByteLevelTokenizer(vocab_size=288), folder, max_context_tokens=64)
    require_computed_there(json.loads((folder / "config.json").read_text()))
    write_gguf(folder, folder / "a.gguf", name="a")
    return model


@pytest.mark.external
@pytest.mark.parametrize(("name", "settings"), COMPUTED, ids=[f"{name}-{n}" for n, (name, _) in enumerate(COMPUTED)])
def test_llama_cpp_computes_the_same_from_the_file(name, settings, tmp_path):
    model = written_family(tmp_path, name, settings)
    with torch.no_grad():
        expected = model(tokens()[:1]).logits[0].numpy()
    found = logits_of(tmp_path / "a.gguf", tokens()[0].tolist(), expected.shape[1])
    np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())  # its keys and values are fp16


@pytest.mark.parametrize(("name", "settings"), [one for one in COMPUTED if one[0] in ("gemma2", "granite moe", "glm4")])
def test_every_tensor_of_a_family_has_its_place(name, settings, tmp_path):
    model = written_family(tmp_path, name, settings)
    read = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    assert sum(data.size for data in read.values()) == model.num_parameters()
    if name == "gemma2":
        norm = model.model.norm.weight.detach().numpy()
        np.testing.assert_allclose(read["output_norm.weight"], norm + 1, rtol=1e-6)


def test_an_export_of_lfm2_states_the_width_of_its_layers():
    config = write_config(complete(compose_config(["model=lfm2_350m"])["model"]))
    writer = gguf.GGUFWriter(None, "lfm2")
    add_settings(writer, config, name="a")
    assert writer.kv_data[0]["lfm2.feed_forward_length"].value == config["intermediate_size"] == 4608


REFUSED = {
    "attention_factor.: 1.3": {
        "model_type": "gpt_oss",
        "num_hidden_layers": 2,
        "rope_parameters": {**YARN, "attention_factor": 1.3},
    },
    "q_lora_rank=none": {"model_type": "deepseek_v3", "q_lora_rank": None, "num_hidden_layers": 4, "kv_lora_rank": 8},
    "tie_word_embeddings=true": {"model_type": "olmo2", "tie_word_embeddings": True},
    "query_pre_attn_scalar=5": {
        "model_type": "gemma2",
        "query_pre_attn_scalar": 5,
        "head_dim": 8,
        "num_hidden_layers": 2,
    },
    "rope_scaling .llama3.": {"model_type": "qwen2", "rope_parameters": {"rope_type": "llama3"}},
    "no_rope_layers=.1, 0.": {"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [1, 0]},
    "gelu_approximate=none": {"model_type": "gpt2", "activation_function": "gelu"},
    "window_tokens=4": {"model_type": "mistral", "sliding_window": 4},
    "norm_topk_prob=false": {"model_type": "qwen3_moe", "norm_topk_prob": False},
    "num_key_value_heads=2": {
        "model_type": "olmoe",
        "norm_topk_prob": False,
        "num_key_value_heads": 2,
        "num_attention_heads": 4,
    },
    "norm_topk_prob=true": {"model_type": "olmoe", "norm_topk_prob": True},
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_model_that_llama_cpp_computes_otherwise_is_refused(said):
    with pytest.raises(ConfigurationError, match=f"{said}.*lmtrain export hf"):
        require_computed_there(REFUSED[said])


TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {}}]}


@pytest.mark.parametrize(
    ("step", "begins"),
    [
        (TEMPLATE, True),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}, True),  # as Llama 3's
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}]}, False),
        (TEMPLATE | {"single": TEMPLATE["single"][::-1]}, False),  # a token behind the text
    ],
)
def test_a_token_before_each_text_is_found_wherever_it_is_written(step, begins, tmp_path):
    tokenizer = Tokenizer(BPE({byte: id_ for id_, byte in enumerate(["<s>", *ByteLevel.alphabet()])}, []))
    tokenizer.pre_tokenizer = ByteLevel()
    content = json.loads(tokenizer.to_str()) | {"post_processor": step}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    writer = gguf.GGUFWriter(None, "llama")
    add_tokenizer(writer, tmp_path, num_ids=257)
    assert writer.kv_data[0]["tokenizer.ggml.add_bos_token"].value is begins
