"""The scaled loss of fp16 and the copies of weights, through a real Trainer."""

from functools import partial

import lightning.pytorch as pl
import pytest
import torch

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.optim.adamw import adamw
from lmtrain.precision.policy import bf16_mixed, bf16_true, fp16_mixed, fp32
from lmtrain.training.module import ModelTransforms
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.trainer import make_trainer
from tests.callbacks.test_default import CountedSteps
from tests.training import short_run
from tests.training.short_run import train, weights


@pytest.fixture
def fit(data_folder, tmp_path, monkeypatch):
    """Train a few steps in a precision, with two micro-batches a step."""

    def run(precision, *, plugin=None, **settings):
        plugin = plugin or PrecisionPlugin(precision, device_type="cpu")
        monkeypatch.setattr(
            short_run, "make_trainer", lambda **options: make_trainer(**options | {"precision": plugin})
        )
        defaults = {
            "micro_batch_sequences": 2,
            "optimizer": partial(adamw, lr=1e-2),
            "scales_loss": precision.scales_loss,
        }
        transforms = ModelTransforms(precision=partial(precision.prepare, strategy_casts=False))
        return train(data_folder, tmp_path, transforms=transforms, **defaults | settings)[0]

    return run


class Breaks(pl.Callback):
    """Makes a gradient of one step, counted from 1, infinite, and remembers the weights after every step."""

    def __init__(self, step):
        self.step, self.after = step, []

    def on_after_backward(self, trainer, pl_module):
        if trainer.global_step + 1 == self.step:
            gradient = next(pl_module.parameters()).grad
            assert gradient is not None
            gradient.fill_(torch.inf)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx % 2:
            self.after.append(weights(pl_module))


@pytest.mark.parametrize(
    "optimizer", [partial(adamw, lr=1e-2), lambda model: torch.optim.SGD(model.parameters(), lr=0.5)]
)
def test_fp16_skips_a_step_that_is_not_finite_and_halves_the_scale(fit, optimizer):
    plugin, breaks = PrecisionPlugin(fp16_mixed(), device_type="cpu"), Breaks(step=2)
    module = fit(fp16_mixed(), plugin=plugin, steps=3, optimizer=optimizer, extra=breaks)
    first, second, third = breaks.after
    assert torch.equal(first, second)
    assert third.isfinite().all()
    assert not torch.equal(second, third)
    assert plugin.state_dict()["scale"] == 2.0**15
    assert [record.was_skipped for record in module.step_metrics.drain()] == [False, True, False]


@pytest.mark.parametrize("precision", [fp16_mixed(), bf16_mixed(), bf16_true()])
def test_gradients_are_unscaled_before_they_are_clipped_and_logged(fit, precision):
    expected = fit(fp32(), steps=3, gradient_clip_norm=0.1).step_metrics.drain()
    found = fit(precision, steps=3, gradient_clip_norm=0.1).step_metrics.drain()
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.loss, ours.gradient_norm) == pytest.approx((theirs.loss, theirs.gradient_norm), rel=2e-2)


@pytest.mark.parametrize("precision", [fp32(), fp16_mixed(), bf16_mixed(), bf16_true()])
def test_no_step_asks_the_device_for_a_value(fit, precision, monkeypatch):
    counted = CountedSteps(monkeypatch)
    fit(precision, steps=4, micro_batch_sequences=4, gradient_clip_norm=1.0, extra=counted)
    assert set(counted.by_step.values()) == {0}


def test_an_optimizer_that_cannot_skip_by_itself_costs_no_read_either(fit, monkeypatch):
    counted = CountedSteps(monkeypatch)
    settings = {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.5), "micro_batch_sequences": 4}
    fit(fp16_mixed(), steps=3, extra=counted, **settings)
    assert counted.by_step == {1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize("precision", [fp16_mixed(), bf16_mixed(), bf16_true()])
def test_a_resumed_run_goes_on_to_the_last_bit(fit, precision, tmp_path):
    whole = fit(precision, steps=4)
    saved = tmp_path / "saved.ckpt"
    fit(precision, steps=2, save_to=saved)
    plugin = PrecisionPlugin(precision, device_type="cpu")
    resumed = fit(precision, plugin=plugin, steps=4, checkpoint=saved)
    assert torch.equal(weights(resumed), weights(whole))
    assert {parameter.dtype for parameter in resumed.parameters()} == {
        torch.bfloat16 if precision.name == "bf16_true" else torch.float32
    }


class Casts(pl.Callback):
    """Counts by micro-batch how often the copies were written."""

    def __init__(self):
        self.versions = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.versions.append(pl_module.language_model.head._weight_copy._version)


def test_weights_are_cast_once_per_step_whatever_the_micro_batches(fit):
    casts = Casts()
    fit(bf16_mixed(), steps=3, micro_batch_sequences=1, extra=casts)
    started = casts.versions[0]
    assert casts.versions == [started + step for step in range(3) for _ in range(4)]


def test_after_the_last_step_evaluation_sees_the_new_weights(fit):
    class Looks(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            with trainer.precision_plugin.forward_context():
                master = pl_module.get_parameter("language_model.head.weight")
                assert torch.equal(pl_module.get_buffer("language_model.head._weight_copy"), master.bfloat16())

    fit(bf16_mixed(), steps=2, extra=Looks())


@pytest.mark.slow
def test_bf16_ends_within_a_hundredth_of_fp32(fit):
    settings = {"steps": 300, "total_steps": 300, "loss": ChunkedCrossEntropy(), "micro_batch_sequences": 4}
    exact, mixed = (
        sum(record.loss for record in fit(precision, **settings).step_metrics.drain()[-50:]) / 50
        for precision in (fp32(), bf16_mixed())
    )
    assert mixed == pytest.approx(exact, rel=1e-2)
