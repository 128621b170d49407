"""What a step needs is tried before anything is prepared or written, in one line with its key."""

from pathlib import Path

import pytest

from lmtrain.cli.main import serve
from lmtrain.errors import ConfigurationError
from lmtrain.run.execution.meta_build import build_on_meta
from tests import tiny


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("weight_decay_schedule=linear optimizer=adamw weight_decay_schedule.final_fraction=2", "must be .* got 2"),
        (
            "momentum_schedule=rise_and_fall momentum_schedule.warmup_steps=1 momentum_schedule.initial=2",
            "momentum_schedule.initial must be .* got 2",
        ),
        ("momentum_schedule=rise_and_fall", r"momentum_schedule.warmup_steps=400 .* longer than the run of 3 steps"),
        ("schedule.warmup_fraction=null schedule.warmup_steps=4", "take 4 steps, longer than the run of 3"),
        ("schedule=cooldown", "schedule.start_step .*resume=runs"),
        ("schedule=cooldown schedule.start_step=9", "schedule.start_step .*end at step 3, got 9"),
        ("precision=fp8", "precision=fp8 needs a GPU"),
        ("precision=tf32", "precision=tf32 needs a GPU"),
        ("precision=bf16_true precision.stochastic_rounding=true optimizer=sgd", "must be false with optimizer=sgd"),
        ("optimizer=adamw +optimizer.stochastic_rounding=true", "the run itself decides it"),
        ("spikes=skip spikes.num_sigmas=0", "spikes.num_sigmas must be above 0"),
        ("weight_average=ema weight_average.decay=1", "weight_average.decay must be"),
        ("run.log_every_steps=0", "run.log_every_steps=0 is below 1. Did you mean 1"),
        ("callbacks.checkpoint.background_from_bytes=-1", "background_from_bytes must be at least 0, got -1"),
        ("callbacks.checkpoint.keep_last=0", "callbacks.checkpoint.keep_last=0 is"),
        ("callbacks=default callbacks.validation.num_passes=0", "callbacks.validation.num_passes=0 is below 1"),
        ("callbacks=default callbacks.graceful_stop.every_steps=0", "callbacks.graceful_stop.every_steps=0 is below 1"),
        ("callbacks=default callbacks.progress.every_seconds=-1", "progress.every_seconds must be at least 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(words: str, message: str, tiny_job) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_on_meta(tiny_job(*words.split()), is_alone=True)


def test_layers_that_fp8_cannot_multiply_are_refused_before_data_is_prepared(tiny_job, monkeypatch) -> None:
    pytest.importorskip("torchao")
    monkeypatch.setattr("lmtrain.precision.float8.require_products", lambda facts, _: facts)  # as if there were a GPU
    job = tiny_job("precision=fp8", "precision.min_width=16", "precision.skip=[nosuch*]")
    with pytest.raises(ConfigurationError, match=r"precision\.skip=nosuch\* matches no linear layer"):
        build_on_meta(job, is_alone=True)


def test_a_refusal_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*tiny.TINY, "budget=steps", "budget.steps=9", "schedule.warmup_steps=10", "run.name=a"]
    assert serve("train", words, program="python train.py") == ConfigurationError.exit_code
    said = capfd.readouterr().err
    assert said.startswith("lmtrain: schedule.warmup_steps=10 and schedule.warmdown_fraction=0.6 take 16 steps")
    assert list(tmp_path.iterdir()) == []
