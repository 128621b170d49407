"""What a resumed run shares with its checkpoint, and which changes may be allowed by name."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.run import execute
from lmtrain.run.execution.start import start
from lmtrain.run.run_config import read_config
from lmtrain.run.stored_runs.identity import identity_of_settings
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_log import read_points
from tests.configs import config_of
from tests.run.conftest import TINY


@pytest.mark.parametrize(
    "override",
    ["attention=eager", "optimizer.lr=0.1", "precision=bf16_mixed", "budget.steps=9", "strategy=ddp", "compile=blocks"],
)
def test_what_leaves_a_checkpoint_usable_is_no_part_of_its_identity(override: str) -> None:
    assert identity_of_settings(config_of(override)) == identity_of_settings(config_of())


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("model.width=32", "model.width"),
        ("model.qk_norm=false", "model.qk_norm"),
        ("optimizer=adamw", "optimizer._target_"),
        ("seed=2", "seed"),
        ("batch.tokens_per_step=1024", "batch.tokens_per_step"),
        ("batch.context_tokens=32", "batch.context_tokens"),
        ("weight_average=ema", "weight_average"),
    ],
)
def test_what_makes_another_run_of_it_is_part_of_its_identity(override: str, name: str) -> None:
    one, other = identity_of_settings(config_of()), identity_of_settings(config_of(override))
    assert one.get(name) != other[name]


MakeJob = Callable[..., Job]


def losses(job: Job) -> dict[int, float]:
    points = read_points(job.folder / "metrics.jsonl")
    return {point.step: point.metrics["train/loss"] for point in points if "train/loss" in point.metrics}


def allowing_words(refused: pytest.ExceptionInfo[ConfigurationError]) -> list[str]:
    """Return the word that a refusal offers, as a shell would read it."""
    return [word.rstrip(",") for word in shlex.split(str(refused.value)) if "run.allow_changes=" in word]


@pytest.mark.faults
def test_changes_allowed_by_name_are_warned_of_and_trained_with(
    tiny_job: MakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(tiny_job("budget.steps=2"))
    words = ["budget.steps=3", "seed=2", "optimizer=adamw", "optimizer.lr=1e-3", "model.rope_base=500"]
    with pytest.raises(ConfigurationError, match="seed") as refused:
        execute(tiny_job(*words))
    allowing = allowing_words(refused)
    assert allowing == ["run.allow_changes=[model.rope_base,optimizer._target_,seed]"]
    job = tiny_job(*words, *allowing)
    execute(job)
    assert [*losses(job)] == [1, 2, 3]
    told = capsys.readouterr().err
    assert "WARNING: seed 1337 -> 2, as run.allow_changes says.\n" in told
    assert "WARNING: model.rope_base 10000.0 -> 500.0, as run.allow_changes says.\n" in told
    assert "lmtrain.optim.adamw.adamw, as run.allow_changes says; its state is reset." in told


COUNTED = "a run counts its tokens and its place in the data in it; a new run takes the weights with init_from=/"
FIXED = {
    "model.width=32": "the checkpoint's tensors differ: ",
    "batch.tokens_per_step=128": COUNTED,
    "batch.context_tokens=8": COUNTED,
}


@pytest.mark.parametrize("word", FIXED)
def test_a_change_that_no_name_can_allow_says_why(tiny_job: MakeJob, word: str) -> None:
    execute(tiny_job("budget.steps=2"))
    name = word.partition("=")[0]
    with pytest.raises(ConfigurationError) as refused:
        execute(tiny_job("budget.steps=3", "seed=2", word, f"run.allow_changes=[{name},seed]"))
    assert f"{name} cannot be allowed: {FIXED[word]}" in str(refused.value)
    assert "or start a new run" in str(refused.value)
    with pytest.raises(ConfigurationError, match=r", or start a new run with another run\.name\.$"):
        execute(tiny_job("budget.steps=3", word))


@pytest.mark.parametrize("part", ["spikes=skip", "weight_average=ema"])
def test_a_run_goes_on_with_and_again_without_a_part_that_keeps_a_state(
    tiny_job: MakeJob, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(tiny_job("budget.steps=2"))
    group = part.partition("=")[0]
    with pytest.raises(ConfigurationError, match=f"{group}=lmtrain") as refused:
        execute(tiny_job("budget.steps=3", part))
    allowing = allowing_words(refused)
    assert allowing == [f"run.allow_changes=[{group}]"]
    execute(tiny_job("budget.steps=3", part, *allowing))
    assert "as run.allow_changes says; its state is reset." in capsys.readouterr().err
    execute(tiny_job("budget.steps=4", part))  # no change any more
    execute(tiny_job("budget.steps=5", *allowing))
    assert "as run.allow_changes says; its state is dropped." in capsys.readouterr().err
    job = tiny_job("budget.steps=5")
    untouched = tiny_job("budget.steps=5", name="untouched")
    execute(untouched)
    assert losses(job) == losses(untouched), "neither changes a step here"


def test_changed_text_goes_on_with_the_runs_own_tokenizer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    notes, kept = Path("notes"), Path("runs/cat/tokenizer/tokenizer.json")
    notes.mkdir()
    (notes / "a.txt").write_text("".join(f"the cat sat on mat {number}.\n\n" for number in range(400)))
    of_text = ["source=files", "source.paths=[notes]", "callbacks=[step_log,token_budget,checkpoint,run_manifest]"]
    others = [word for word in TINY if not word.startswith(("data", "tokenizer", "callbacks"))]

    def train(*words: str, name: str = "cat") -> None:
        typed = [*others, *of_text, *words]
        config = read_config(compose_config(typed)).checked()
        start(Job(config=config, overrides=typed, name=name, root="runs"), outer=None)

    learned, allowed = "tokenizer.vocab_size=300", "run.allow_changes=[data.fingerprint]"
    train("budget.steps=4", learned)
    before = kept.read_bytes()
    (notes / "b.txt").write_text("".join(f"zum Beispiel {number} Dinge.\n\n" for number in range(900)))
    for more in ([], [allowed]):
        with pytest.raises(ConfigurationError, match=r"; tokenizer=|: tokenizer=") as refused:
            train("budget.steps=6", learned, *more)
        own = ["tokenizer=folder", "tokenizer.path=runs/cat/tokenizer", "tokenizer.vocab_size=300"]
        assert " ".join(own) in str(refused.value)
    train("budget.steps=6", *own, allowed)
    assert kept.read_bytes() == before
    assert "WARNING: data.fingerprint " in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match=r"init_from=runs/cat has another tokenizer: \d+ of its 300 ids"):
        train("budget.steps=1", "init_from=runs/cat", learned, name="next")
    train("budget.steps=1", "init_from=runs/cat", learned, "run.allow_changes=[tokenizer]", name="next")
    assert "ids stand for other text in this run's data" in capsys.readouterr().err
    train("budget.steps=1", "init_from=runs/cat", *own, name="third")
