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
from lmtrain.interop.gguf_file import named_tensors, require_computed_there, write_gguf
from lmtrain.interop.gguf_tokenizer import add_tokenizer
from lmtrain.interop.tokenizer_files import write_tokenizer
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.interop.hugging_face import saved, tokens

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


REFUSED = {
    "gelu_approximate=none": {"model_type": "gpt2", "activation_function": "gelu"},
    "window_tokens=4": {"model_type": "mistral", "sliding_window": 4},
    "normalize_weights=false": {"model_type": "qwen3_moe", "norm_topk_prob": False},
    "num_kv_heads=2": {
        "model_type": "olmoe",
        "norm_topk_prob": False,
        "num_key_value_heads": 2,
        "num_attention_heads": 4,
    },
    "normalize_weights=true": {"model_type": "olmoe", "norm_topk_prob": True},
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
    gguf = pytest.importorskip("gguf")
    tokenizer = Tokenizer(BPE({byte: id_ for id_, byte in enumerate(["<s>", *ByteLevel.alphabet()])}, []))
    tokenizer.pre_tokenizer = ByteLevel()
    content = json.loads(tokenizer.to_str()) | {"post_processor": step}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    writer = gguf.GGUFWriter(None, "llama")
    add_tokenizer(writer, tmp_path, num_ids=257)
    assert writer.kv_data[0]["tokenizer.ggml.add_bos_token"].value is begins
