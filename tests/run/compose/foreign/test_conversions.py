import json
import os

import pytest

from lmtrain.run.compose.foreign import conversions
from lmtrain.run.compose.foreign.equivalents import equivalent


@pytest.mark.parametrize(
    ("name", "value", "beside", "words"),
    [
        ("min_lr", "1e-4", ["optimizer=adamw"], "schedule.final_fraction=0.03333"),
        ("min_lr", "1e-4", ["learning_rate=1e-3"], "schedule.final_fraction=0.1"),
        ("lr_warmup_samples", "0", [], "schedule.warmup_fraction=0"),
        ("lr_warmup_samples", "4", ["block_size=512"], "schedule.warmup_tokens=2048"),
        ("ddp_timeout", "180000000", [], "strategy.timeout_seconds=1000000"),
        ("eval_iters", "10", ["batch_size=4"], "callbacks.validation.max_tokens=10240"),
        ("lora_target", "all", [], "adapter=lora"),
        ("dataset", "c4", [], "source=hf_dataset source.name=allenai/c4"),
        ("dataset", "a/b.json", [], "source=files source.paths=[a/b.json]"),
        ("save", "out/first/", [], "run.root=out run.name=first"),
        ("exp_dir", "out", ["exp_manager.name=first"], "run.root=out"),
        ("tensor_model_parallel_size", "1", [], ""),
        ("data_parallel_shard_degree", "-1", [], "strategy=fsdp"),
        ("head_dim", "128", [], "model.head_width=128"),
        ("head_dim", "128", ["--depth", "12"], ""),
        ("config_name", "gpt2", [], "model=gpt2_124m"),
        ("model_type", "LlamaForCausalLM", [], ""),
        ("eval_iters", "many", [], ""),
        ("text_key", "body", ["dataset=a/b"], "source=hf_dataset source.text_column=body"),
        ("text_key", "body", ["source=hf_dataset"], "source.text_column=body"),
        ("validation_file", "b.txt", ["--train_file", "a.txt"], "source=files source.validation_paths=[b.txt]"),
        ("num_layers", "12", ["model=nano"], "model.depth=12"),
        ("hidden_size", "768", ["model=nano"], "model.depth=12"),
        ("n_head", "6", ["model=nano"], "model.depth=12"),
        ("num_layers", "12", [], "model.num_layers=12"),
        ("val_set_size", "2000", [], ""),
        ("val_set_size", "0.05", [], "data.folder.validation_fraction=0.05"),
        ("momentum", "0.9", ["optim=sgd"], "optimizer=momentum optimizer.momentum=0.9"),
        ("momentum", "0.9", [], "optimizer.momentum=0.9"),
        ("momentum", "0.8", ["--optim", "adamw_torch"], "optimizer.beta1=0.8"),
        ("lr_scheduler_type", "constant_with_warmup", [], "schedule=constant"),
        ("epsilon", "0.2", ["task=grpo"], "objective.epsilon=0.2"),
        ("epsilon", "1e-8", ["task=sft"], "optimizer.eps=1e-8"),
        ("temperature", "0.9", ["task=grpo"], "objective.temperature=0.9"),
        ("beta", "0.04", ["task=grpo"], "objective.beta=0.04"),
        ("warmup_steps", "0.1", [], "schedule.warmup_fraction=0.1"),
        ("warmup_steps", "10", [], "schedule.warmup_steps=10"),
        ("val_check_interval", ".25", [], "callbacks.validation.num_passes=4"),
        ("logging_steps", "0.05", [], ""),
    ],
)
def test_a_setting_is_converted_beside_the_others_of_its_command(name, value, beside, words):
    assert " ".join(equivalent(name, value, beside).words) == words


def test_a_place_is_answered_by_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("prefix.bin", "prefix.idx"):
        (tmp_path / name).touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    vocabulary = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"content": "<s>"}, {"content": "a"}]}
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(vocabulary))
    tokens = equivalent("data_path", "[0.5,prefix]", [])
    assert tokens.words == ("data=external", "data.folder.format=megatron", "data.folder.train=[prefix.bin]")
    tokenizer = equivalent("tokenizer_path", "model", [])
    assert (*tokenizer.words, *tokenizer.implied) == (
        *("tokenizer=folder", "tokenizer.path=model", "tokenizer.vocab_size=3"),
    )
    assert equivalent("base_model", "model", []).note == "after `lmtrain import hf model runs/base`"


def test_a_pipe_or_a_deep_file_in_place_of_a_tokenizer_holds_no_answer_up(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    assert conversions._size_of(tmp_path) is None
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    assert conversions._size_of(deep) is None
