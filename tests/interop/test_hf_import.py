"""The reference is transformers: same logits and gradients from its folders; one clear refusal for each bad one."""

import json
import shutil

import pytest
import torch

from lmtrain.cli.commands.import_hf import import_model
from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.interop.folders import imported_facts
from lmtrain.interop.hf_import import import_folder, open_hugging_face
from lmtrain.interop.tensor_map import map_tensors
from lmtrain.run.compose.start_options import imported_options
from tests.interop.hugging_face import (
    MODELS,
    change_config,
    change_weights,
    imported,
    saved,
    tokens,
    weights_of,
)

QKV = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_equal_those_of_transformers(name, tmp_path):
    theirs = saved(name, tmp_path / "hf")
    model = imported(tmp_path / "hf", tmp_path / "out")
    logits, expected = model(tokens()), theirs(tokens()).logits
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)  # fp32, another order of sums
    logits.square().mean().backward()
    expected.square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    ours = dict(model.named_parameters())
    compared = 0
    for tensor in map_tensors(model, theirs.config.model_type):
        for part in tensor.parts:
            if part.name in gradients:  # experts are fused in memory there: tests/models compare them
                actual = part.of(ours[tensor.name].grad)
                torch.testing.assert_close(actual, gradients[part.name], atol=2e-4, rtol=2e-3)
                compared += 1
    assert compared >= 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_keep_their_dtype_to_the_bit(dtype, tmp_path):
    saved("qwen3", tmp_path / "hf", dtype=dtype)
    import_folder(open_hugging_face(tmp_path / "hf"), tmp_path / "out")
    kept = weights_of(tmp_path / "out" / "weights")
    assert {tensor.dtype for tensor in kept.values()} == {dtype}
    assert torch.equal(kept["embedding.token.weight"], weights_of(tmp_path / "hf")["model.embed_tokens.weight"])


def test_gpt2_as_published_has_no_prefix_and_keeps_its_masks(tmp_path):
    theirs = saved("gpt2", tmp_path / "hf")

    def as_published(weights):
        for name in list(weights):
            weights[name.removeprefix("transformer.")] = weights.pop(name)
        weights["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)

    change_weights(tmp_path / "hf", as_published)
    model = imported(tmp_path / "hf", tmp_path / "out")
    torch.testing.assert_close(model(tokens()), theirs(tokens()).logits, atol=2e-5, rtol=1e-4)


def test_a_config_of_release_4_means_the_same(tmp_path):
    saved("llama 3 rope", tmp_path / "new")
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    rope = json.loads((tmp_path / "new" / "config.json").read_text())["rope_parameters"]
    change_config(tmp_path / "old", rope_parameters=None, rope_theta=rope.pop("rope_theta"), rope_scaling=rope)
    new, old = (imported(tmp_path / name, tmp_path / f"out {name}") for name in ("new", "old"))
    assert torch.equal(new(tokens()), old(tokens()))


def refused(folder, message, *, with_tokenizer=True):
    """Expect one refusal, and nothing left behind."""
    out = folder.parent / "out"
    with pytest.raises(DataError, match=message):
        import_folder(open_hugging_face(folder, with_tokenizer=with_tokenizer), out)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["BloomForCausalLM"]}, "BloomForCausalLM is not supported.*Qwen3MoeForCausalLM"),
        ({"attention_bias": True}, "lacks the tensor model.layers.0.self_attn.q_proj.bias"),
        ({"attention_sinks": 4}, "attention_sinks=4 is not supported; remove the key"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"quantization_config": "fp8"}, "quantization_config"),
        ({"is_causal": False}, "is_causal=False is not supported; only True is"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most"),
        (
            {
                "rope_parameters": {"rope_theta": 1e4, "rope_type": "longrope", "factor": 2.0}
                | {key: [1.0] for key in ("short_factor", "long_factor")}
            },
            "long_factors must have one factor per rotated pair of a head, 4, got 1",
        ),
        ({"rope_parameters": {"rope_type": "xpos", "rope_theta": 1e4}}, "rope_type=xpos is not supported"),
        ({"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2]}}, "mrope_section of rope_parameters is not"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rope_type=llama3 needs 'factor'"),
        ({"rope_theta": 5.0}, "rope_parameters must agree with rope_theta"),
        ({"hidden_size": None}, "hidden_size must be a whole number"),
        ({"rms_norm_eps": -1}, r"config\.json is invalid: .*norm_eps"),
        ({"rope_parameters": [1]}, r"config\.json is damaged, a value is of the wrong kind"),
        ({"num_attention_heads": 5}, r"config.json is invalid: .*num_heads"),
        ({"intermediate_size": 40}, r"gate_proj.weight in .* is \[48, 32\]; config.json says \[40, 32\]"),
        ({"num_hidden_layers": 100_000}, "config.json says 100000 layers, and the files have tensors of 2"),
        ({"model_type": "mistral"}, "architectures=LlamaForCausalLM does not match model_type=mistral"),
        ({"num_hidden_layers": 1}, r"has the tensor model.layers.1.* \(9 in all\) outside the model"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=true, but lm_head.weight differs"),
    ],
)
def test_a_config_that_cannot_be_is_refused_in_one_line(changes, message, tmp_path):
    saved("llama", tmp_path / "hf")
    change_config(tmp_path / "hf", **changes)
    refused(tmp_path / "hf", message)


def test_a_head_that_equals_its_tied_embedding_is_no_contradiction(tmp_path):
    theirs = saved("llama tied, one kv head", tmp_path / "hf")

    def add_head(weights):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()

    change_weights(tmp_path / "hf", add_head)
    model = imported(tmp_path / "hf", tmp_path / "out")
    torch.testing.assert_close(model(tokens()), theirs(tokens()).logits, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "spoil", "message"),
    [
        ("llama", {"max_shard_size": "20KB"}, lambda folder: next(folder.glob("*00002-of*")).unlink(),
         "lacks model-00002-of-.*, which model.safetensors.index.json names"),
        ("llama", {}, lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
         "pickled weights, which can run code"),
        ("llama", {"dtype": torch.float16},
         lambda folder: change_weights(folder, lambda weights: weights[QKV][3, 5].fill_(torch.inf)),
         f"{QKV} in .* has 1 infinities and 0 NaN among 1024 values of float16"),
        ("llama", {"vocab_size": 200, "eos_token_id": 1}, lambda folder: None,
         "its tokenizer has 257 entries, its model vocab_size=200"),
        ("mixtral", {}, lambda folder: change_config(folder, num_local_experts=1_000_000_000),
         "config.json says 1000000000 experts, and the files have tensors of 4"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_are_refused_and_nothing_is_left(name, options, spoil, message, tmp_path):
    saved(name, tmp_path / "hf", **options)
    spoil(tmp_path / "hf")
    refused(tmp_path / "hf", message)


def logits_of_transformers(folder):
    """Return what transformers makes of a folder."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return model.eval()(tokens()).logits.detach()


def test_a_mixtral_without_a_base_rotates_as_in_transformers(tmp_path):
    saved("mixtral", tmp_path / "hf")
    change_config(tmp_path / "hf", rope_parameters=None)
    model = imported(tmp_path / "hf", tmp_path / "out")
    torch.testing.assert_close(model(tokens()), logits_of_transformers(tmp_path / "hf"), atol=1e-4, rtol=1e-4)


def test_a_missing_tokenizer_is_refused_with_the_way_around(tmp_path):
    saved("llama", tmp_path / "hf", tokenizer=False)
    refused(tmp_path / "hf", "has no tokenizer.json; .*--without-tokenizer")
    import_folder(open_hugging_face(tmp_path / "hf", with_tokenizer=False), tmp_path / "out")
    assert not (tmp_path / "out" / "tokenizer").exists()
    words = imported_options({"init_from": str(tmp_path / "out")})
    assert not [word for word in words if "tokenizer" in word]


def test_a_name_on_the_hub_is_taken_from_its_cache(tmp_path, monkeypatch, capsys):
    theirs = saved("mistral", tmp_path / "cache/models--me--small/snapshots/abc")
    (tmp_path / "cache/models--me--small/refs").mkdir()
    (tmp_path / "cache/models--me--small/refs/main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    assert import_model(["hf", "me/small", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == theirs.num_parameters()
    assert imported_facts(tmp_path / "out")["source"] == "me/small"
    with pytest.raises(EnvironmentProblem, match=r"FOLDER=me/other is not a folder here, .* name a folder"):
        import_model(["hf", "me/other", "new"])
