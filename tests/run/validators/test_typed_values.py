"""What is told sooner is what is told anyway, and a right command line is told nothing."""

from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.validators.typed_values import refuse_typed, require_paths_here
from tests.configs import config_of

RIGHT = [
    "model.width=128",
    "+model.window_tokens=64",
    "model.qk_norm=true",
    "batch.tokens_per_step=256K",
    "batch.micro_batch_sequences=auto",
    "budget.tokens=2M",
    "optimizer.lr=1e-3",
    "callbacks.validation=null",
    "run.cache=elsewhere",
]
WRONG = {
    "model.width=-3": "model.width=-3 is below 1; each dimension of a model is at least 1.",
    "model.num_layers=2": "layers are 0 to 1, nearest valid: 'model.value_embedding_layers=[1]'.",
    "model.num_heads=7": "num_heads=7; nearest valid: model.width=126 or 140, or model.num_heads=4 or 8.",
    "+model.num_kv_heads=3": "is not a multiple of model.num_kv_heads=3; nearest valid: model.num_kv_heads=1 or 2.",
    "model.qk_norm=3": "model.qk_norm=3 is not of type bool.",
    "batch.context_tokens=banana": "batch.context_tokens=banana is not a number",
    "batch.tokens_per_step=1000": "nearest valid: 1024.",
    "budget.tokens=0": "budget.tokens=0 is not above 0",
    "model.vocab_size=1": "model.vocab_size=1 is below the tokenizer's 4096 entries; nearest valid: 4096, "
    "or text prepared with a tokenizer of at most 1: under init_from, with the model's own.",
    "model.width=1e30": "model.width=1e+30 is more than any model can have; at most 16777216.",
    "batch.context_tokens=1e30": "batch.context_tokens=1e+30 is more than any model can have",
    "trainer.accelerator=foo": "trainer.accelerator=foo is none of auto, cpu, gpu, cuda, mps",
    "trainer.devices=-1": "trainer.devices=-1 is below 1; nearest valid: 1.",
    "optimizer.lr=-1": "optimizer.lr=-1 is not at least 0",
    "cluster.peak_flops=abc": "cluster.peak_flops=abc is not a number",
    "model._target_=os.system": "model._target_=os.system is not allowed: a target here starts with lmtrain.models.",
    "callbacks.checkpoint.keep_last=no": "callbacks.checkpoint.keep_last=no is not a number",
    "callbacks.checkpoint.keep_last=0": "callbacks.checkpoint.keep_last=0 is below 1; nearest valid: 1.",
    "callbacks.step_log.every_steps=0": "every_steps=0 is below 1; nearest valid: 1.",
    "callbacks.checkpoint.every_tokens=0": "callbacks.checkpoint.every_tokens=0 is below 1; nearest valid: 1.",
}


@pytest.mark.parametrize("word", WRONG)
def test_a_wrong_value_is_refused_with_the_words_of_the_whole_check(word: str) -> None:
    with pytest.raises(ConfigurationError) as sooner:
        refuse_typed(config_of(word), [word])
    assert WRONG[word] in str(sooner.value)


def test_ranks_are_held_against_the_strategy() -> None:
    words = ["strategy=single", "trainer.devices=2"]
    with pytest.raises(ConfigurationError, match="strategy=single trains on 1 rank, not 2"):
        refuse_typed(config_of(*words), words)


def test_what_a_person_did_not_type_is_left_to_the_whole_check() -> None:
    refuse_typed(config_of("model.width=-3"), [])


def test_a_typed_folder_is_looked_for_on_this_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["source=files", "source.paths=[nowhere]"]
    with pytest.raises(DataError, match=r"^source\.paths: nowhere does not exist"):
        require_paths_here(config_of(*words), words)
    require_paths_here(config_of(*words), ["source=files"])
    require_paths_here(config_of(*words, "cluster=h100_8x"), words)


@pytest.mark.parametrize("word", RIGHT)
def test_a_right_value_passes(word: str) -> None:
    refuse_typed(config_of(word), [word, "model=llama_tiny", "~callbacks.progress"])
