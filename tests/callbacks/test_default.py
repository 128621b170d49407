"""The callbacks of conf/callbacks/default.yaml, all at once."""

from importlib import import_module
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
from omegaconf import OmegaConf
from torch.utils._python_dispatch import TorchDispatchMode

from lmtrain.training.intervals import is_step_end

CONF = Path(__file__).parents[2] / "conf" / "callbacks"


def default_callbacks(context, *, log_every_steps, **replaced):
    """Build what the files say, in their order; keywords replace settings of a callback."""
    names = OmegaConf.load(CONF / "default.yaml").defaults
    health = {"recompute_every_steps": None, "compare_replicas_every_steps": None}
    scalars = {"run": {"log_every_steps": log_every_steps}, "seed": 7, "health": health}
    callbacks = {}
    for name in names:
        nodes = OmegaConf.merge(scalars, OmegaConf.load(CONF / f"{name}.yaml"))
        settings = cast("dict[str, Any]", OmegaConf.to_container(nodes, resolve=True))[name] | replaced.get(name, {})
        module, _, kind = settings.pop("_target_").rpartition(".")
        callbacks[name] = getattr(import_module(module), kind)(**settings, context=context)
    return callbacks


class ReadsOfTheDevice(TorchDispatchMode):
    """Counts every way in which a loop can ask a device for a value: item(), float(), bool(), tolist()."""

    num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class CountedSteps(pl.Callback):
    """Counts the reads of each step: from the end of the one before to its own."""

    def __init__(self, monkeypatch):
        self.reads = ReadsOfTheDevice()
        self.is_counting = False
        self.by_step = {}
        tolist = torch.Tensor.tolist

        def counted(tensor):
            self.reads.num += 1
            return tolist(tensor)

        monkeypatch.setattr(torch.Tensor, "tolist", counted)

    def on_train_start(self, trainer, pl_module):
        self.reads.__enter__()
        self.is_counting, self.reads.num = True, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if is_step_end(trainer, batch_idx):  # a read in any of a step's micro-batches is the step's
            self.by_step[trainer.global_step], self.reads.num = self.reads.num, 0

    def on_train_end(self, trainer, pl_module):
        if self.is_counting:
            self.reads.__exit__(None, None, None)
        self.is_counting = False

    def on_exception(self, trainer, pl_module, exception):
        self.on_train_end(trainer, pl_module)  # a mode left on is every later test's


def test_no_step_between_log_points_asks_the_device_for_a_value(make_run, monkeypatch):
    run = make_run(steps=20, peak_flops=1e15, usd_per_gpu_hour=2.0)
    replaced = {
        "validation": {"num_passes": 1},
        "checkpoint": {"every_steps": 10, "every_seconds": None},
        "text_samples": {"num_new_tokens": 3},
    }
    callbacks = default_callbacks(run.context, log_every_steps=5, **replaced)
    counted = CountedSteps(monkeypatch)
    run.fit(*callbacks.values(), counted)
    assert {step for step, num in counted.by_step.items() if num} == {5, 10, 15, 20}
    assert counted.by_step[5] == 1  # for the log and training health


def test_resuming_a_finished_run_changes_nothing(make_run):
    run = make_run(steps=3)
    run.fit(*default_callbacks(run.context, log_every_steps=5).values())
    before = (run.context.folder / "metrics.jsonl").read_text()
    saved = run.context.checkpoints_folder / "step_00000003"
    run.fit(*default_callbacks(run.context, log_every_steps=5).values(), checkpoint=saved)
    assert (run.context.folder / "metrics.jsonl").read_text() == before
    assert run.saved_steps() == [3]
