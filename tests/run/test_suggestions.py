"""Words of other programs and misspelled ones: what a message names in their place."""

import re

import pytest

from lmtrain.cli.main import main
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import compose_config, configs_of
from lmtrain.run.compose.other_programs import OPTIONS, SETTINGS, inverted
from lmtrain.run.compose.paths import conf_folder, key_of, option_names
from lmtrain.run.schema.node import leaf_keys

ANSWERS = {
    # the usual words of other programs
    "lr=1e-3": r"Did you mean optimizer\.lr=1e-3 \(",
    "--learning-rate 1e-3": r"Did you mean optimizer\.lr=1e-3",
    "--lr=1e-3": r"Did you mean optimizer\.lr=1e-3",
    "per_device_train_batch_size=8": r"Did you mean batch\.micro_batch_sequences=8",
    "gradient_accumulation_steps=4": r"Did you mean batch\.tokens_per_step",
    "bf16=false": r"Did you mean to leave it out\?",
    "optim=adamw_torch": r"Did you mean optimizer=adamw\?",
    "lr_scheduler_type=cosine": r"Did you mean schedule=warmup_cosine\?",
    "bf16=true": r"Did you mean precision=bf16_mixed",
    "training.seq_len=2048": r"Did you mean batch\.context_tokens=2048",
    "trainer.max_steps=10": r"Did you mean budget\.steps=10",
    "train_file=a.txt": r"Did you mean source=files source\.paths=\[a\.txt\]",
    "--gradient_checkpointing": r"Did you mean recompute=every_block",
    "--resume": r"Did you mean resume=auto\?",
    "dropout=0.1": r"leave it out \(models here have no dropout\)",
    "torch_compile=false": r"Did you mean compile=none\?",
    "parity.ranks=4": r"Did you mean --ranks 4 \(of lmtrain parity\)",
    # options under other names
    "model=llama": r"'model=llama_tiny'",
    "model=lama_tiny": r"'model=llama_tiny'",
    "precision=bf16": r"'precision=bf16_mixed'",
    "precision=16": r"'precision=fp16_mixed'",
    "compile=False": r"'compile=none'",
    "compile=true": r"'compile=auto'",
    "-m compile=true,none": r"'compile=auto'",
    "optimizer=null": r"^optimizer: must be one of adafactor, .*, got null",
    "optimizer=3": r"^optimizer: must be one of adafactor, .*, got 3",
    "callbacks=[default,early_stoping]": r"'early_stopping'",
    "tokenizer=something/else": r"tokenizer=huggingface tokenizer\.name=NAME",
    # misspelled and misplaced
    "modle=llama_tiny": r"'model=llama_tiny'",
    "dropuot=0.1": r"unknown key dropuot\. `lmtrain train --help` lists all settings",
    "optimizer.lrr=1": r"optimizer has .*'optimizer\.lr=1'",
    "schedule=cosin": r"'schedule=warmup_cosine'",
    "~callbacks.checkpoit": r"'~callbacks\.checkpoint'",
    "run=notes": r"write run\.name=notes",
    "~optimizer": r"every run has optimizer",
    "llama_3_8b": r"Did you mean 'model=llama_3_8b'",
    "optimizer adamw": r"Did you mean 'optimizer=adamw'",
    "seed=1,2": r"choose one, as seed=1, or add -m",
    "seed=[1": r"Brackets and quotes",
}


@pytest.mark.parametrize(("words", "pattern"), ANSWERS.items())
def test_a_word_that_no_config_knows_gets_the_words_to_type(words: str, pattern: str) -> None:
    with pytest.raises(ConfigurationError, match=pattern) as refused:
        configs_of(parse_arguments(words.split()), config_name="train")
    assert "\n" not in str(refused.value)


def test_all_unknown_words_are_answered_in_one_message() -> None:
    words = ["--lr", "3e-4", "batch_size=32", "--epochs=2", "bf16=false", "nonsense=1", "seed=3"]
    with pytest.raises(ConfigurationError) as refused:
        parse_arguments(words)
    first, *lines = str(refused.value).splitlines()
    assert first.endswith("write optimizer.lr=3e-4 batch.micro_batch_sequences=32 budget.epochs=2.")
    assert [line.split(":")[0].strip() for line in lines] == [
        "--lr",
        "batch_size=32",
        "--epochs=2",
        "bf16=false",
        "nonsense=1",
    ]


def test_every_answer_of_the_table_is_a_setting_here() -> None:
    keys = {*leaf_keys(compose_config(["model=gpt2_124m", "optimizer=adamw"]))} | {*compose_config([])}
    for answer in SETTINGS:
        for word in filter(lambda word: "=" in word, re.sub(r" \(.*|--.*", "", answer).split()):
            group, dot, _ = key_of(word).partition(".")
            option = word.partition("=")[2]
            if not dot and option not in ("{}", "RUN", "true") and (conf_folder() / group).is_dir():
                assert {*option.strip("[]").split(",")} <= {*option_names(group)}, word
            assert group in keys or group in ("task", "sweep", "debug", "source"), word
    for group, names in OPTIONS.items():
        assert names.keys() <= {*option_names(group)}
        assert not inverted(names).keys() & {*option_names(group)}, "an option of ours needs no other name"


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["lr=1e-3"], r"Did you mean lmtrain train lr=1e-3"),
        (["trian"], r"'train'"),
        (["export", "gguf", "--outtpye", "f16", "a", "b"], r"Did you mean '--outtype'"),
        (["evaluate", "runs/x", "--taks", "a"], r"Did you mean '--tasks'"),  # of a group of flags
        (["completion", "bsh"], r"Did you mean 'bash'"),
    ],
)
def test_an_unknown_command_gets_the_command_to_type(
    words: list[str], pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert re.search(pattern, capsys.readouterr().err)
