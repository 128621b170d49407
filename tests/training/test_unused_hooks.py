import lightning.pytorch as pl
from lightning.pytorch.callbacks import LambdaCallback

from lmtrain.training.unused_hooks import HOOKS_OF_A_STEP, leave_out_unused_hooks


class OneHook(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.ended = batch_idx


class Inherits(OneHook):
    pass


def test_what_a_callback_defines_or_inherits_stays():
    for kind in (OneHook, Inherits):
        callback = leave_out_unused_hooks(kind())
        assert callable(callback.on_train_batch_end)
        assert all(getattr(callback, name) is None for name in HOOKS_OF_A_STEP if name != "on_train_batch_end")


def test_hooks_given_as_functions_stay():
    callback = leave_out_unused_hooks(LambdaCallback(on_before_backward=lambda *_: None))
    assert callable(callback.on_before_backward)


def test_every_hook_is_one_of_lightnings():
    assert all(hasattr(pl.Callback, name) for name in HOOKS_OF_A_STEP)
