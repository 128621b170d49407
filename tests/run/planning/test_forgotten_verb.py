import pytest

from lmtrain.run.planning.forgotten_verb import forgotten_verb, is_setting


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr=1e-3"], "lr=1e-3: there is no key lr; write lmtrain train optimizer.lr=1e-3."),
        (["--epochs", "3"], "--epochs 3: a key has no dashes; write lmtrain train budget.epochs=3."),
        (["optimizer.lr", "=", "1e-3"], "no space belongs around =; write lmtrain train optimizer.lr=1e-3."),
        (["[a", "b"], "a list is the value of a key; write lmtrain train source=files 'source.paths=[a, b]'."),
        (["seed=3", "--cfg", "job"], "seed=3 --cfg job: a verb comes first; write lmtrain train seed=3 --cfg job."),
        (["-m", "seed=3,4"], "-m seed=3,4: a verb comes first; write lmtrain train -m seed=3,4."),
        (["optimizer", "lr=1e-3"], "optimizer lr=1e-3: a key is one word; write lmtrain train optimizer.lr=1e-3."),
        (["optimizer.lr", "1e-3"], "a key and its value are one word; write lmtrain train optimizer.lr=1e-3."),
        (
            ["optimizer=adamw", "hot"],
            "`--help` lists both. A setting has a verb before it, as in lmtrain train KEY=VALUE.",
        ),
        (["optimizer", "adamw"], "a group and its option are one word; write lmtrain train optimizer=adamw."),
        (["source.paths=[a]", "source=files"], "write lmtrain train 'source.paths=[a]' source=files."),
    ],
)
def test_settings_without_a_verb_get_the_command_that_was_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_setting(words[0], words[1:])
    assert str(forgotten_verb(words)).endswith(said)
    assert capsys.readouterr().out == ""


def test_an_unknown_option_is_told_too() -> None:
    said = str(forgotten_verb(["model=gpt2"]))
    assert "Did you mean 'model=gpt2_124m'?" in said
    assert said.endswith("A setting has a verb before it, as in lmtrain train KEY=VALUE.")


def test_other_words_are_no_settings() -> None:
    assert not is_setting("trian", ["seed=1"])
