"""The code that an export carries computes what our models do, over every option of conf/model and of the models."""

import importlib
import json
from pathlib import Path

import pytest
import torch

from lmtrain.errors import DataError
from lmtrain.inference.sampling import Sampling, generate
from lmtrain.interop.hf_config import CODE, OWN_PREFIX, own_config, own_settings
from lmtrain.interop.hf_export import export_folder
from lmtrain.interop.model_settings import build, complete, node_of
from lmtrain.models.llama import Llama
from lmtrain.models.rope import LinearRopeScaling
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.stored_runs.loaded_models import model_to_run
from tests.inference.cached import noisy
from tests.interop.hugging_face import tokens
from tests.interop.test_hf_export import SMALL, to_export

CONF = sorted(path.stem for path in (Path(__file__).parents[2] / "conf" / "model").glob("*.yaml"))
SMALLER = {
    "width": 64, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "head_width": 16, "feed_forward_width": 48,
    "vocab_size": 288, "max_context_tokens": 64, "window_tokens": 6, "num_bigram_buckets": 61, "depth": 2,
}  # fmt: skip
LEARNED_RESIDUALS = {"embedding_skip": True, "backout": True, "embedding_norm": True, "norm_weights": False}
# options of the models that no file of conf/model has
OPTIONS = {
    "gated smear and values": (
        Llama,
        {"embedding_smear": True, "smear_gate_width": 8, "value_embedding_layers": [1], "value_gate_width": 8},
    ),
    "residuals": (Llama, {**LEARNED_RESIDUALS, "tie_embeddings": True, "logit_soft_cap": 5.0}),
    "scores": (Llama, {"attention_multiplier": 0.5, "qk_norm": True, "qk_norm_over": "width", "key_smear": True}),
    "linear rope": (Llama, {"rope_scaling": node_of(LinearRopeScaling, factor=2.0), "num_kv_heads": 1}),
}


def smaller(option):
    """Return an option of conf/model as a node, with all that it has and small dimensions."""
    node = compose_config([f"model={option}", "tokenizer=byte_level"])["model"]
    for name, value in SMALLER.items():
        if node.get(name) is not None:
            node[name] = value
    if node.get("rope_scaling"):
        node["rope_scaling"]["original_context_tokens"] = 16
    return node


def random_model(node):
    """Build a node's model with every weight drawn, those too that start at zero."""
    return noisy(build(node).to_empty(device="cpu"))


@pytest.fixture(scope="module")
def own_code():
    return importlib.import_module("lmtrain.interop.own_code.modeling_lmtrain")


def theirs_of(own_code, node, model):
    config = json.loads(json.dumps(own_config(complete(node))))
    theirs = own_code.LmtrainForCausalLM(own_code.LmtrainConfig(**config)).eval()
    theirs.load_state_dict({f"{OWN_PREFIX}{name}": tensor for name, tensor in model.state_dict().items()})
    return theirs


# whose classes transformers has, and with experts
ELSEWHERE = (
    *(
        "gpt2",
        "imported",
        "transformers",
        "mixtral",
        "olmo",
        "qwen_2_5",
        "gemma",
        "glm",
        "granite",
        "phi_",
        "smollm_3",
        "deepseek",
    ),
    *("gpt_oss", "lfm2", "nemotron_h", "qwen_3_235b", "qwen_3_30b", "qwen_3_next"),
)
NODES = {option: None for option in CONF if not option.startswith(ELSEWHERE)} | {
    name: node_of(kind, **(SMALL | own)) for name, (kind, own) in OPTIONS.items()
}


@pytest.mark.parametrize("name", NODES)
def test_it_computes_what_our_model_does(name, own_code):
    node = NODES[name] or smaller(name)
    model = random_model(node)
    theirs = theirs_of(own_code, node, model)
    expected = model(tokens())
    torch.testing.assert_close(theirs(tokens()).logits, expected, atol=2e-5, rtol=1e-4)
    kept = theirs(tokens(), logits_to_keep=1).logits
    torch.testing.assert_close(kept[:, 0], expected[:, -1], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama_tiny", "nano"])
def test_texts_that_are_padded_on_the_left_are_each_as_alone(name, own_code):
    node = smaller(name)
    model = random_model(node)
    theirs = theirs_of(own_code, node, model)
    short = tokens()[:1, :9]
    padded = torch.cat((torch.full((1, 5), 7), short), dim=1)
    mask = torch.tensor([[0] * 5 + [1] * 9])
    alone = theirs(padded, attention_mask=mask).logits[:, 5:]
    torch.testing.assert_close(alone, model(short), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama_tiny", "nano"])
def test_a_folder_is_read_back_and_loads_in_transformers_and_writes_the_same(name, tmp_path):
    from transformers import AutoModelForCausalLM

    node = NODES[name] or smaller(name)
    model = random_model(node)
    export_folder(to_export(model, node), tmp_path / "out", max_shard_bytes=50_000)
    read = model_to_run(tmp_path / "out", device="cpu").model.state_dict()
    assert read.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, read[key]) for key, tensor in model.state_dict().items())
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    torch.testing.assert_close(theirs(tokens()).logits, model(tokens()), atol=2e-5, rtol=1e-4)
    prompt = tokens(8)[:1]
    greedy = theirs.generate(prompt, max_new_tokens=24, do_sample=False, eos_token_id=None)
    assert torch.equal(greedy, generate(model, prompt, num_new_tokens=24, sampling=Sampling(temperature=0.0)))
    labels = tokens()
    alone = theirs(labels, labels=labels).loss
    halves = [theirs(half, labels=half, num_items_in_batch=labels[:, 1:].numel()).loss for half in labels.split(1)]
    assert alone.item() == pytest.approx(sum(halves).item(), rel=1e-6), "as transformers' trainer adds batches up"
    assert (tmp_path / "out" / "README.md").read_text().count('from_pretrained(".", trust_remote_code=True)') == 2


def test_the_code_imports_nothing_of_ours():
    assert "import lmtrain" not in CODE.read_text()
    assert "from lmtrain" not in CODE.read_text()


def test_a_strangers_config_without_settings_is_one_line() -> None:
    with pytest.raises(DataError, match="export the model again"):
        own_settings({"model_type": "lmtrain", "family": "llama"})
