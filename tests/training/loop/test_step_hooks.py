from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.profilers import PassThroughProfiler

from lmtrain.training.step_loop import HOOKS_OF_A_STEP, StepHooks, is_defined


class OneHook(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.ended = batch_idx


class Inherits(OneHook):
    pass


class Module(pl.LightningModule):
    def on_train_batch_start(self, batch, batch_idx) -> Any:
        return self._current_fx_name if batch_idx else -1


def hooks_of(*callbacks: pl.Callback) -> StepHooks:
    trainer = SimpleNamespace(
        callbacks=callbacks, lightning_module=Module(), profiler=PassThroughProfiler(), global_step=0
    )
    return StepHooks(trainer)  # pyright: ignore[reportArgumentType]


def test_what_a_callback_defines_inherits_or_was_given_is_its_hook():
    for callback in (OneHook(), Inherits(), LambdaCallback(on_train_batch_end=lambda *_: None)):
        assert [name for name in HOOKS_OF_A_STEP if is_defined(callback, name, pl.Callback)] == ["on_train_batch_end"]


def test_callbacks_are_called_in_order_with_trainer_and_module():
    seen = []
    first = LambdaCallback(on_train_batch_end=lambda *arguments: seen.append(("first", *arguments[2:])))
    last = Inherits()
    hooks = hooks_of(first, pl.Callback(), last)
    assert hooks.call("on_train_batch_end", "outputs", "batch", 7) is None
    assert seen == [("first", "outputs", "batch", 7)]
    assert last.ended == 7


def test_the_modules_hook_answers_and_knows_its_name():
    hooks = hooks_of()
    assert hooks.call("on_train_batch_start", None, 0) == -1
    assert hooks.call("on_train_batch_start", None, 1) == "on_train_batch_start"
    assert hooks._module._current_fx_name is None


def test_every_hook_is_one_of_lightnings():
    assert all(hasattr(pl.Callback, name) and hasattr(pl.LightningModule, name) for name in HOOKS_OF_A_STEP)
