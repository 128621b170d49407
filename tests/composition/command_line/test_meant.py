import pytest

from lmtrain.composition.command_line.arguments import parse_arguments
from lmtrain.composition.command_line.compose import compose_config
from lmtrain.composition.command_line.meant import OUR_KEY
from lmtrain.composition.command_line.unknown_words import leaf_keys
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["lr=1e-3"], "optimizer.lr=1e-3."),
        (["epochs=3"], "budget.epochs=3."),
        (["--model", "gpt2_124m"], "model=gpt2_124m."),
        (["--resume"], "resume=VALUE."),
        (["max_steps=100"], "budget.steps=100."),
        (["batch_size=32"], "batch.tokens_per_step=8192 (32 sequences of batch.context_tokens=256)."),
        (
            ["batch.context_tokens=64", "batch_size=2"],
            "batch.tokens_per_step=128 (2 sequences of batch.context_tokens=64).",
        ),
        (["batch_size=auto"], "batch.tokens_per_step=TOKENS, which is sequences times batch.context_tokens."),
        (["--lr", "1e-3"], "optimizer.lr=1e-3."),
        (["--lr=1e-3"], "optimizer.lr=1e-3."),
        (["--learning-rate", "1e-3"], "optimizer.lr=1e-3."),
        (["--lr"], "optimizer.lr=VALUE."),
        (["--optimizer.lr", "1e-3"], "optimizer.lr=1e-3."),
        (["optimizer.lr", "=", "1e-3"], "optimizer.lr=1e-3."),
        (["optimizer.lr", "=1e-3"], "optimizer.lr=1e-3."),
        (["optimizer", "lr=1e-3"], "optimizer.lr=1e-3."),
        (["run", "name=notes"], "run.name=notes."),
        (["seed=1", "model", "gpt2_124m"], "model=gpt2_124m."),
        (["optimizer.lr=", "1e-3"], "optimizer.lr=1e-3."),
        (["budget.tokens=20", "M"], "budget.tokens=20M."),
        (["run.name=my", "long", "run", "seed=1"], "run.name=my_long_run."),
        (["run.root=my", "runs"], "'run.root=my runs'."),
        (["[a b"], "source=files 'source.paths=[a, b]'."),
        (["seed=1", "-m", "[my/a,", "my/b]"], "source=files 'source.paths=[my/a, my/b]'."),
    ],
)
def test_a_word_of_other_programs_gets_the_word_that_was_meant(words: list[str], meant: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_arguments(words)
    assert str(refused.value).endswith(f"; write {meant}")


@pytest.mark.parametrize(
    "words", [["notes"], ["seed=1", "-m", "notes"], ["optimizer", "seed=1"], ["optimizer", "adamv"]]
)
def test_a_word_without_a_value_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="is not KEY=VALUE or GROUP=OPTION"):
        parse_arguments(words)


@pytest.mark.parametrize(
    "words",
    [
        ["--cfg", "job", "optimizer.lr=1e-3"],
        ["--foo", "3"],  # an unknown flag is refused by the parser of flags
        ["~callbacks.validation", "-m", "seed=1,2"],
        ["+model.num_kv_heads=2", "optimizer.lr="],
    ],
)
def test_what_may_be_meant_as_typed_is_kept(words: list[str]) -> None:
    assert set(words) <= {*parse_arguments(words).hydra}


def test_every_word_to_type_instead_is_a_key_and_none_that_is_refused_is() -> None:
    keys = {*leaf_keys(compose_config([]))}
    assert {*OUR_KEY.values()} <= keys
    assert not {*OUR_KEY} & keys
