import pytest

from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.paths import conf_folder
from lmtrain.run.compose.unknown_words import leaf_keys, options_with, unknown_key, unknown_option
from tests.run.compose.test_compose import refusal

PRECISIONS = [path.stem for path in (conf_folder() / "precision").glob("*.yaml")]


@pytest.mark.parametrize(
    ("option", "near"),
    [
        ("fp16", "Did you mean 'precision=fp16_mixed'? `--help precision` lists all 8."),
        ("bf16", "Did you mean 'precision=bf16_mixed' or 'precision=bf16_true'? `--help precision` lists all 8."),
        ("32-true", "Did you mean 'precision=fp32'? `--help precision` lists all 8."),
        ("16-true", "Did you mean 'precision=bf16_true' or 'precision=fp16_mixed'? `--help precision` lists all 8."),
        ("fp64", "the widest is precision=fp32."),
        ("mixed", "Did you mean 'precision=bf16_mixed' or 'precision=fp16_mixed'? `--help precision` lists all 8."),
        ("Float32", "Did you mean 'precision=fp32'? `--help precision` lists all 8."),
        ("bf16-mixed", "Did you mean 'precision=bf16_mixed'? `--help precision` lists all 8."),
        ("zzz", "fp8, tf32."),
        ("off", "fp8, tf32."),  # of a group with a `none` it is that
    ],
)
def test_an_unknown_option_names_those_made_of_its_word_or_the_nearest(option: str, near: str) -> None:
    assert unknown_option("precision", option, PRECISIONS).endswith(near)


@pytest.mark.parametrize(
    ("group", "option", "said"),
    [
        (
            "model",
            "gpt2",
            "no such option. Did you mean 'model=gpt2_124m'? `--help model` lists all 27.",
        ),
        ("model", "llama_mikro", "Did you mean 'model=llama_micro'? `--help model` lists all 27."),
        ("model", "meta-llama/Llama-3.2-1B", "then init_from=OUT. Did you mean 'model=llama_3_2_1b'?"),
        ("source", "my/notes", "source.name=my/notes."),
        (
            "compile",
            "off",
            "there is no such option. Did you mean 'compile=none'? `--help compile` lists all 4.",
        ),
        ("compile", "True", "Did you mean 'compile=auto'? `--help compile` lists all 4."),
        ("tokenizer", "gpt2", "huggingface; Hugging Face's are tokenizer=huggingface tokenizer.name=gpt2."),
        ("tokenizer", "tiktoken", "tiktoken's are on the hub; write tokenizer=huggingface tokenizer.name=gpt2."),
        ("data", "my/notes", "source.name=my/notes."),
        ("data", ".", "a folder or file of your own is source=files 'source.paths=[.]'."),
        ("data", "my.txt", "a folder or file of your own is source=files 'source.paths=[my.txt]'."),
        ("source", "openwebtext", "wikitext; data sets of Hugging Face are source=hf_dataset source.name=OWNER/NAME."),
        ("budget", "10M", "an amount is the value of a key; write budget.tokens=10M."),
        ("budget", "10min", "budget.hours=10min."),
        ("budget", "$5", "budget.usd=$5."),
        ("strategy", "expert", "strategy=fsdp or hsdp (docs/decisions/0018)."),
        ("strategy", "context_parallel", "Did you mean 'strategy=context'? `--help strategy` lists all 10."),
        ("strategy", "ulysses", "Did you mean 'strategy=context'? `--help strategy` lists all 10."),
        ("source", ".", "a folder or file of your own is source=files 'source.paths=[.]'."),
    ],
)
def test_a_name_of_elsewhere_gets_the_word_that_takes_it(group: str, option: str, said: str) -> None:
    options = [path.stem for path in (conf_folder() / group).glob("*.yaml")]
    assert unknown_option(group, option, options).endswith(said)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("precision.foo", "; precision has no settings as it is chosen."),
        ("precision.stochastic_rounding", "stochastic_rounding is a setting of precision=bf16_true."),
        ("weight_average.decay", "decay is a setting of weight_average=ema."),
        ("optimizer.initial_accumulator", "initial_accumulator is a setting of optimizer=adagrad."),
        ("optimizer.lrr", "cautious_decay, share_work, compile_update, fused. Did you mean 'optimizer.lr=1'?"),
        ("model.biases", "; biases is a setting of model=gpt2_124m, gpt2_1558m, gpt2_355m, gpt2_774m."),
        ("model.dropout", "embedding_init_std, head_init_std."),  # near nothing
        (
            "callbacks.early_stopping.patience",
            "is not chosen; write 'callbacks=[default,early_stopping]' callbacks.early_stopping.patience=1.",
        ),
        ("spkes.foo", "spkes.foo=1: there is no key spkes.foo. Did you mean 'spikes'?"),
        ("sources.paths", "sources.paths=1: there is no key sources.paths; write source=files source.paths=1."),
    ],
)
def test_an_unknown_key_names_what_there_is_and_which_option_has_it(key: str, said: str) -> None:
    config = compose_config([])
    assert unknown_key(key, typed=f"{key}=1", config=config, conf=conf_folder()).endswith(said)


@pytest.mark.parametrize(("key", "is_told"), [("model.biases", True), ("optimizer.betas", True), ("seed.foo", False)])
def test_there_is_nothing_to_switch_off_where_an_option_has_no_such_setting(key: str, is_told: bool) -> None:
    told = unknown_key(key, typed=f"{key}=false", config=compose_config([]), conf=conf_folder())
    assert told.endswith(". Here is nothing to switch off: leave it out.") == is_told


def test_options_of_a_key_are_those_that_name_it_also_where_they_set_other_groups() -> None:
    assert options_with("optimizer.beta1", conf=conf_folder()) == [
        "adamw",
        "adamw_8bit",
        "lion",
        "muon",
        "schedule_free",
    ]
    assert options_with("optimizer", conf=conf_folder()) == []
    assert options_with("nothing.at_all", conf=conf_folder()) == []


def test_leaf_keys_are_dotted_and_leave_out_targets() -> None:
    assert leaf_keys({"a": {"_target_": "x", "b": {"c": 1}}, "d": 2}) == ["a", "a.b", "a.b.c", "d"]


@pytest.mark.parametrize(
    ("word", "message", "meant"),
    [
        ("batch=8", "batch=8 is one value, and batch has context_tokens, ", "batch.tokens_per_step=2048"),
        ("run=notes", "run=notes is one value, and run has name, root, ", "run.name=notes"),
        ("sweep=tpe", "sweep=tpe is one value, and sweep has sampler, trials, ", "sweep.sampler=tpe"),
        ("health=on", "health=on is one value, and health has ", "health.recompute_every_steps=100"),
    ],
)
def test_one_value_in_the_place_of_several_keys_is_refused(word, message, meant):
    said = refusal(word)
    assert said.startswith(message)
    assert said.endswith(f"; write {meant}.")
    assert refusal(f"{word.partition('=')[0]}=null").endswith("; leave it out.")


@pytest.mark.parametrize("word", ["~optimizer", "~model", "~optimizer=muon"])
def test_a_run_without_one_of_its_groups_is_refused(word):
    assert refusal(word) == f"{word}: every run has {word[1:].partition('=')[0]}; nearest valid: without this word."
