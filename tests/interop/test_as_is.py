"""Models of transformers that this package has no class for, by their own classes, against plain transformers."""

import json
import math
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import lmtrain
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.cli.main import serve
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.inference.engine import TextEngine
from lmtrain.inference.generation import Request
from lmtrain.inference.sampling import Sampling
from lmtrain.interop.tokenizer_files import write_tokenizer
from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.transformers_model import TransformersModel
from lmtrain.optim.adamw import adamw
from lmtrain.parallel.activation_checkpoint import every_block
from lmtrain.run.stored_runs.loaded_models import model_to_run
from lmtrain.simulate.measured_facts import compiled_blocks, fake_tensors
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.training.module import materialize
from tests import forked, tiny

SHARED = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.1}
HEADS = {**SHARED, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64}
ENDS = {"bos_token_id": 256, "eos_token_id": 256, "pad_token_id": None}
FAMILIES = {
    "gpt_neox": HEADS,
    "falcon": HEADS,
    "stablelm": {**HEADS, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "starcoder2": {**HEADS, "num_key_value_heads": 2, "sliding_window": 5, "residual_dropout": 0.0},
    "phimoe": {**HEADS, "num_key_value_heads": 2, "num_local_experts": 4}
    | {"router_jitter_noise": 0.0, "input_jitter_noise": 0.0},
    "bloom": {**SHARED, "n_head": 4, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    "mamba": {**SHARED, "state_size": 4},
}
ERNIE = {**HEADS, "num_key_value_heads": 2, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1} | {
    "moe_intermediate_size": 48, "moe_layer_start_index": 0,
}  # fmt: skip
APART = ("gpt_neox", "stablelm", "starcoder2", "phimoe")
SEED = 7


@cache
def tokens(rows=2, length=24):
    return torch.randint(300, (rows, length), generator=torch.Generator().manual_seed(1))


def config_of(kind):
    return {"model_type": kind, **FAMILIES[kind], **ENDS}


def plain(kind):
    """Return transformers' own model, its weights drawn from SEED."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = config_of(kind)
    torch.manual_seed(SEED)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))


def ours(kind):
    with torch.device("meta"):
        model = TransformersModel(config=config_of(kind))
    return materialize(model, device=torch.device("cpu"), seed=SEED)


@pytest.mark.parametrize("kind", FAMILIES)
def test_three_steps_are_those_of_a_plain_loop(kind):
    theirs, model, ids = plain(kind).train(), ours(kind).train(), tokens()
    own = adamw(model, lr=1e-3, eps=1e-5)  # above the noise of gradients that are zero, as of the keys' biases
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-3, eps=1e-5, weight_decay=0.0)
    for _ in range(3):
        loss = theirs(ids, labels=ids).loss
        total = model(ids[:, :-1], ids[:, 1:], CrossEntropy())
        torch.testing.assert_close(total.objective / total.num_tokens, loss, atol=5e-6, rtol=0)
        (total.objective / total.num_tokens).backward()
        loss.backward()
        for optimizer in (own, reference):
            optimizer.step()
            optimizer.zero_grad()
    trained = dict(model.module.named_parameters())
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(trained[name], weight, atol=5e-6, rtol=0)


def test_recomputed_blocks_have_the_gradients_of_kept_ones():
    kept, again = ours("stablelm").train(), every_block(ours("stablelm").train())
    for model in (kept, again):
        model(tokens(), tokens(), CrossEntropy()).objective.backward()
    for (name, one), other in zip(kept.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, msg=name)


def test_a_config_alone_is_planned_in_sequences_of_its_length(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quantized = {**config_of("stablelm"), "quantization_config": {"quant_method": "fp8"}, "note": ""}
    (tmp_path / "config.json").write_text(json.dumps(quantized))
    words = ["--json", "cluster=h100_8x", "compile=none", "batch.tokens_per_step=8192"]
    assert serve("plan", ["--hf", "config.json", *words], program="lmtrain plan") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"]["total"] == sum(one.numel() for one in plain("stablelm").parameters())
    assert found["batch"]["context_tokens"] == HEADS["max_position_embeddings"]
    assert serve("plan", ["--hf", "config.json", "model=gpt2_124m"], program="lmtrain plan") == 2
    assert "--hf config.json names the model: got model=gpt2_124m too" in capsys.readouterr().err


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_plan_counts_its_parameters_and_torchs_flops(kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    num_tokens, settings = 48, config_of(kind)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(settings.pop("model_type"), **settings), dtype=torch.bfloat16
        )
        mask = torch.ones(1, 1, num_tokens, num_tokens, dtype=torch.bool)
        masks = {"attention_mask": mask} if kind in APART else {}  # else the class reads values, which meta lacks
        with FlopCounterMode(display=False) as counter:
            theirs(torch.zeros(1, num_tokens, dtype=torch.long), use_cache=False, **masks)
        shape = TransformersModel(config=config_of(kind)).shape()
    assert shape.num_parameters == sum(one.numel() for one in theirs.parameters())
    idle = 2 * 2 * 3 * 32 * 48 if kind == "phimoe" else 0  # two of four experts, in two layers
    assert shape.num_active_parameters == pytest.approx(shape.num_parameters - idle, abs=100)
    planned = flops_per_token(shape, num_tokens).palm * num_tokens
    experts = 2 * idle * num_tokens  # as many are chosen as idle; torch's counter has no formula of theirs
    fixed = 0.002 if kind == "mamba" else 0  # its convolution computes beyond the end of a text, of any length
    assert planned == pytest.approx(3 * (counter.get_total_flops() + experts), rel=fixed, abs=0)


def test_a_router_s_own_frozen_biases_are_no_adapter():
    config = {"model_type": "ernie4_5_moe", **ERNIE, **ENDS}
    with torch.device("meta"):
        model = TransformersModel(config=config)
    shape = model.shape()
    assert any(not one.requires_grad for one in model.parameters())
    assert shape.num_parameters == sum(one.numel() for one in model.parameters())
    assert shape.num_parameters - shape.num_active_parameters == pytest.approx(2 * 2 * 3 * 32 * 48, abs=1000)


def test_settings_by_the_number_of_a_layer_are_planned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    layers = {
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 300,
        "per_layer_config": {"01": {"head_dim": 16}},
    }
    sizes = {**HEADS, "num_key_value_heads": 2, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_text", **sizes, **layers}))
    words = ["cluster=h100_8x", "compile=none", "batch.tokens_per_step=8192", "batch.context_tokens=64", "--json"]
    assert serve("plan", ["--hf", "config.json", *words], program="lmtrain plan") == 0
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    counted = json.loads(capsys.readouterr().out)["parameters"]["total"]
    assert counted == sum(one.numel() for one in theirs.parameters())


def test_a_class_that_reads_values_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v2", **HEADS}))
    assert serve("plan", ["--hf", "config.json", "cluster=h100_8x", "compile=none"], program="lmtrain plan") == 2
    said = capsys.readouterr().err
    assert "its class cannot run on fake tensors (TypeError: topk()" in said


@pytest.mark.parametrize("kind", FAMILIES)
def test_documents_of_a_row_are_kept_apart_or_refused(kind):
    model, row = ours(kind).eval(), tokens(rows=1)
    ends = (0, 1, 2, 10, 24)
    documents = torch.cat([torch.full((1, stop - start), start) for start, stop in pairwise(ends)], dim=1)
    if kind not in APART:
        with pytest.raises(ConfigurationError, match=r"packing\.document_mask.*packing=contiguous"):
            model(row, documents=documents)
        return
    with torch.no_grad():
        together = model(row, documents=documents)
        alone = torch.cat([model(row[:, start:stop]) for start, stop in pairwise(ends)], dim=1)
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", FAMILIES)
def test_greedy_texts_are_those_of_generate(kind):
    theirs, model = plain(kind).eval(), ours(kind)
    engine = TextEngine(model, [bytes([id_ % 256]) for id_ in range(300)])
    prompts = [tokens()[0, :9].tolist(), tokens()[1, :4].tolist()]
    written = [
        engine.submit(Request(prompt=prompt, num_new_tokens=6, sampling=Sampling(temperature=0.0)))
        for prompt in prompts
    ]
    while not engine.is_idle:
        engine.step()
    for prompt, mine in zip(prompts, written, strict=True):
        found = theirs.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=None)
        assert mine.new_tokens == found[0, len(prompt) :].tolist()


def test_a_loss_in_chunks_scores_given_logits():
    model, ids = ours("gpt_neox"), tokens()
    found, expected = (model(ids[:, :-1], ids[:, 1:], loss()) for loss in (ChunkedCrossEntropy, CrossEntropy))
    torch.testing.assert_close(found.objective, expected.objective)


def test_code_named_by_a_config_is_never_run(tmp_path, capsys):
    own = {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}, "attn_implementation": "kernels-community/evil"}
    with torch.device("meta"):
        model = TransformersModel(config=config_of("gpt_neox") | own)
    assert model.module.config._attn_implementation == "sdpa"
    folder = saved("gpt_neox", tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | own | {"model_type": "evil"}))
    (folder / "evil.py").write_text("raise SystemExit('it ran')")
    assert serve("import", ["hf", str(folder), str(tmp_path / "out"), "--as-is"], program="lmtrain import") != 0
    assert serve("train", ["model=transformers", f"model.path={folder}", "compile=none"], program="lmtrain train") == 2
    assert capsys.readouterr().err.count("code in its folder is never run") == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "pickled"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "adapter_config.json"),
        (lambda folder: edit(folder, is_causal=False), "is_causal: must be true"),
        (lambda folder: edit(folder, num_hidden_layers=3), "missing keys.*layers.2"),
        (lambda folder: edit(folder, quantization_config={"bits": 4}), "quantization_config"),
        (lambda folder: edit(folder, hidden_size="${oc.env:HOME}"), "config"),
    ],
)
def test_a_folder_that_is_not_its_config_s_model_is_refused(change, pattern, tmp_path, capsys):
    folder = saved("gpt_neox", tmp_path / "folder")
    change(folder)
    assert serve("import", ["hf", str(folder), str(tmp_path / "out"), "--as-is"], program="lmtrain import") in (2, 4)
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert re.search(pattern, message)


@pytest.mark.parametrize(
    "config",
    [
        config_of("gpt_neox") | {"is_causal": False},
        {**HEADS, **ENDS, "model_type": "bert"},
        {**HEADS, **ENDS, "model_type": "gemma3_text", "use_bidirectional_attention": True, "head_dim": 8},
    ],
)
def test_a_class_whose_tokens_see_their_targets_is_refused(config, tmp_path, capsys):
    with pytest.raises(DataError, match="would see its target"), torch.device("meta"):
        TransformersModel(config=config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (
        serve("train", ["model=transformers", f"model.path={tmp_path}", "compile=none"], program="lmtrain train") == 4
    )
    assert capsys.readouterr().err.count("\n") == 1


def test_a_class_that_sees_later_tokens_and_says_so_nowhere_is_refused(tmp_path, capsys):
    from transformers import XLMConfig, XLMWithLMHeadModel

    settings = XLMConfig(vocab_size=257, emb_dim=32, n_layers=2, n_heads=2)
    XLMWithLMHeadModel(settings).save_pretrained(tmp_path / "xlm")
    write_tokenizer(ByteLevelTokenizer(), tmp_path / "xlm", max_context_tokens=64)
    words = ["hf", str(tmp_path / "xlm"), str(tmp_path / "out"), "--as-is"]
    assert serve("import", words, program="lmtrain import") == 4
    assert "got xlm, whose tokens see later ones" in capsys.readouterr().err
    with pytest.raises(DataError, match="whose tokens see later ones"):
        TransformersModel(config=settings.to_dict()).initialize_weights(torch.Generator().manual_seed(0))


def test_a_loaded_model_has_no_dropout(tmp_path):
    folder = saved("gpt_neox", tmp_path / "folder")
    edit(folder, hidden_dropout=0.5)
    assert serve("import", ["hf", str(folder), str(tmp_path / "out"), "--as-is"], program="lmtrain import") == 0
    module = lmtrain.load(tmp_path / "out", device="cpu").module
    assert torch.equal(module(tokens()), module(tokens()))


def test_compiled_blocks_with_an_index_of_their_own_are_planned():
    with fake_tensors():
        model = TransformersModel(config=config_of("falcon") | {"num_kv_heads": 1})
        assert compiled_blocks(model, (1, 16)).activations > 0


@pytest.mark.parametrize("limit", [math.inf, {"__float__": "Infinity"}])
def test_an_infinite_float_of_a_config_is_kept(limit, tmp_path):
    from transformers import AutoConfig

    mamba = {**SHARED, **ENDS, "num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 4, "expand": 2}
    config = {"model_type": "mamba2", **mamba, "time_step_limit": [0.0, limit]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    composed = lmtrain.compose("model=transformers", f"model.path={tmp_path}").config.model.values["config"]
    with torch.device("meta"):
        model = TransformersModel(config=composed)
    config_of_class: Any = model.module.config
    assert [*config_of_class.time_step_limit] == [0.0, math.inf]
    assert [*AutoConfig.from_pretrained(tmp_path).time_step_limit] == [0.0, math.inf]
    assert model.shape().num_parameters > 0


def edit(folder, **settings):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def saved(kind, folder):
    """Save a model as a person does, with a tokenizer of bytes."""
    plain(kind).save_pretrained(folder)
    write_tokenizer(ByteLevelTokenizer(), folder, max_context_tokens=64)
    return folder


def train(folder, *words, num_ranks=1):
    data = ["data=synthetic", "data.folder.num_tokens=20000", "tokenizer=byte_level", "tokenizer.vocab_size=257"]
    words = [
        *data,
        *tiny.BATCH,
        *tiny.QUIET,
        "optimizer=adamw",
        "optimizer.eps=1e-5",
        "schedule=constant",
        "run.log_every_steps=1",
        *words,
    ]
    ended = forked.run(
        tiny.PROJECT / "train.py", words, folder=folder, environment=tiny.environment(), num_ranks=num_ranks
    )
    assert ended.returncode == 0, ended.stdout[-1500:] + ended.stderr[-1500:]
    return ended


def weights_of(run, step):
    state = torch.load(run / "checkpoints" / f"step_{step:08d}" / "state.pt", weights_only=True)
    return state["state_dict"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stablelm", "mamba"])
def test_a_folder_is_trained_resumed_scored_and_exported(kind, tmp_path, monkeypatch, capsys):
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    saved(kind, tmp_path / "folder")
    assert serve("import", ["hf", "folder", "taken", "--as-is"], program="lmtrain import") == 0
    assert "by its own class" in train(tmp_path, "init_from=taken", "run.name=whole", "budget.steps=4").stdout
    train(tmp_path, "init_from=taken", "run.name=cut", "budget.steps=2")
    train(tmp_path, "init_from=taken", "run.name=cut", "budget.steps=4")
    whole, cut = (weights_of(tmp_path / "runs" / name, 4) for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    capsys.readouterr()
    assert serve("evaluate", ["runs/whole", "--json"], program="lmtrain evaluate") == 0
    score = next(iter(json.loads(capsys.readouterr().out)["scores"].values()))
    assert 0 < score["score"] < 20
    assert serve("export", ["hf", "runs/whole", "out"], program="lmtrain export") == 0
    exported = AutoModelForCausalLM.from_pretrained("out").eval()
    model = model_to_run(tmp_path / "runs" / "whole", device="cpu").model.eval()
    with torch.no_grad():
        torch.testing.assert_close(exported(tokens()).logits, model(tokens()), atol=1e-6, rtol=0)
        start = F.cross_entropy(plain(kind).eval()(tokens()).logits.flatten(0, 1), tokens().flatten())
        end = F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten())
    assert start != end
    names, given = set(load_file("out/model.safetensors")), set(load_file("folder/model.safetensors"))
    assert names == given
    config, original = (json.loads(Path(where, "config.json").read_text()) for where in ("out", "folder"))
    assert config == original


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_of_fsdp_train_as_one_process(tmp_path):
    saved("bloom", tmp_path / "folder")
    words = ["model=transformers", "model.path=folder", "budget.steps=3"]
    train(tmp_path, *words, "run.name=one")
    train(tmp_path, *words, "run.name=two", "strategy=fsdp", "trainer.devices=2", num_ranks=2)
    one, two = (tiny.losses(tmp_path / "runs" / name) for name in ("one", "two"))
    assert one == pytest.approx(two, abs=2e-5)
    first, second = (model_to_run(tmp_path / "runs" / name, device="cpu").model for name in ("one", "two"))
    for name, weight in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], weight, atol=2e-5, rtol=0)


@pytest.mark.slow
def test_a_key_of_the_config_is_changed_and_its_run_needs_no_folder(tmp_path):
    saved("gpt_neox", tmp_path / "folder").rename(tmp_path / "there")
    train(tmp_path, "model=transformers", "model.path=there", "model.config.num_hidden_layers=3", "budget.steps=1")
    (tmp_path / "there").rename(tmp_path / "gone")
    run = next(path for path in (tmp_path / "runs").iterdir() if path.name[0] != ".")
    assert len(model_to_run(run, device="cpu").model.blocks) == 3
