"""What a step must not do, counted rather than timed, in every option that a config can choose.

Options are found in conf/: a new one joins by itself. What this machine cannot run is skipped with its reason.
"""

import os
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.build import Run, build_run
from lmtrain.run.execution.run import quiet_libraries
from lmtrain.run.run_config import read_config
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog
from lmtrain.training.intervals import is_step_end
from tests import tiny

CONF = Path(__file__).parents[1] / "conf"
LOG_EVERY, STEPS = 3, 8
# Groups that choose nothing about a step: what is read, planned or prepared, and where; compile is guarded below.
NOT_OF_A_STEP = {
    *(
        "base",
        "budget",
        "cleaning",
        "cluster",
        "compile",
        "data",
        "debug",
        "deduplicate",
        "engine",
        "experiment",
        "model",
    ),
    *("source", "tokenizer", "trainer", "launcher", "hparams_search", "machine", "pipeline", "logger", "callbacks"),
}
OPTIONS = [
    f"{file.parent.name}={file.stem}" for file in sorted(CONF.glob("*/*.yaml")) if file.parent.name not in NOT_OF_A_STEP
]
NOT_COUNTABLE = {
    "optimizer=adafactor": "torch's own step reads values of the device",
    "optimizer=adamw_8bit": "its compiled step does not run under a counter of operators",
    "optimizer=muon_nano": "its compiled step does not run under a counter of operators",
    "strategy=pipeline": "a part reads the number of its micro-batch, which the host has",
    **dict.fromkeys(("task=grpo", "task=rloo"), "it reads the tokens of the answers that it writes"),
}
# Options that a run of a few steps on a CPU refuses, or that change the model or the ranks: tried by themselves.
ALONE = {
    *("attention=flash", "attention=flex", "loss=liger", "optimizer=inherited", "packing=conversations"),
    *("momentum_schedule=rise_and_fall", "momentum_schedule=rise_and_fall_nano"),
    *("precision=fp8", "precision=tf32", "profiler=torch", "scaling=depth_dial", "schedule=cooldown"),
    *("schedule=trapezoid_nano", "weight_decay_schedule=cosine", "weight_decay_schedule=linear"),
}
GROUPS_ALONE = {"objective", "strategy", "task"}
# Python calls in a step between log points, of the Trainer with every default callback and the tiny model: they were
# 1,298 with torch 2.13 and lightning 2.6 in our own loop, with a heartbeat (1,145 without); a twelfth more is allowed.
MOST_CALLS = 1_400


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


def build(folder: Path, *words: str) -> Run:
    """Build the run of a tiny config with every default callback."""
    given = {word.partition("=")[0] for word in words}
    kept = [word for word in tiny.TINY if word.partition("=")[0] not in given]
    overrides = [
        *kept, *words, f"data.folder.root={folder / 'data'}", "budget=steps", f"budget.steps={STEPS}",
        f"run.log_every_steps={LOG_EVERY}", "callbacks.checkpoint.every_seconds=null", "trainer.accelerator=cpu",
        "callbacks.validation.num_passes=null", "callbacks.validation.max_tokens=200",
        "callbacks.text_samples.num_new_tokens=1",
    ]  # fmt: skip
    kept_once = [word for word in overrides if word != "run.log_every_steps=1"]
    quiet_libraries()
    config = read_config(compose_config(kept_once)).checked()
    job = Job(config=config, overrides=kept_once, name="guard", root=str(folder / "runs"))
    RunFolder(job.folder, root=Path(job.root)).create()
    return build_run(job, rank=0, log=RunLog(job.folder))


def fit(run: Run, callback: pl.Callback) -> None:
    """Train with one more callback, the last."""
    before = set(os.environ)
    run.trainer.callbacks.append(callback)
    try:
        run.trainer.fit(run.module, datamodule=run.datamodule)
    finally:
        for name in set(os.environ) - before:  # Lightning leaves the address of a process group behind
            del os.environ[name]
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guards")


def rows_of(options: list[str]) -> list[tuple[str, ...]]:
    """Join options of different groups, each option once; those that want more than a tiny run stay alone."""
    groups: dict[str, list[str]] = {}
    alone = [option for option in options if option in ALONE or option.partition("=")[0] in GROUPS_ALONE]
    for option in options:
        if option not in alone:
            groups.setdefault(option.partition("=")[0], []).append(option)
    most = max(map(len, groups.values()))
    rows = (tuple(group[number] for group in groups.values() if number < len(group)) for number in range(most))
    return [*rows, *((option,) for option in alone)]


@pytest.mark.parametrize("options", rows_of([each for each in OPTIONS if each not in NOT_COUNTABLE]), ids=" ".join)
def test_no_option_asks_the_device_for_a_value_between_log_points(options, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        require_no_question(data, options, monkeypatch)
        return
    except (*LMTRAIN_ERRORS, ImportError) as reason:
        reasons = [f"{options[0]}: {reason}"]
    if options[1:]:  # they do not go together
        reasons = []
        for option in options:
            try:
                require_no_question(data, (option,), monkeypatch)
            except (*LMTRAIN_ERRORS, ImportError) as reason:
                reasons.append(f"{option}: {reason}")
    if reasons:
        pytest.skip("; ".join(reasons))


def require_no_question(data: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        counted = CountedSteps(patch)
        run = build(data, *options)
        fit(run, counted)
    between = {step: num for step, num in counted.by_step.items() if step % LOG_EVERY and step < STEPS}
    assert between
    assert not any(between.values()), (options, between)


class PythonCalls(pl.Callback):
    """Counts calls of Python functions, and the tensors that stay, from the end of one step to the next one's."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[int, int] = {}
        self._num = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        sys.setprofile(None)
        self.calls[trainer.global_step] = self._num
        self._num = 0
        sys.setprofile(self._count)

    def on_train_end(self, trainer, pl_module):
        sys.setprofile(None)

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        self._num += event == "call"


def test_a_step_makes_no_more_python_calls_than_it_did(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = PythonCalls()
    fit(build(data), calls)
    between = [num for step, num in calls.calls.items() if step > 2 and step % LOG_EVERY and step < STEPS]
    assert max(between) <= MOST_CALLS, between
    assert max(between) - min(between) < 50, "steps between log points are alike"


def test_nothing_grows_from_step_to_step(data, tmp_path, monkeypatch):
    """Tensors alive after a step between log points: those that wait for the next log point, and no more."""
    monkeypatch.chdir(tmp_path)
    import gc

    alive: dict[int, int] = {}

    class Alive(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            gc.collect()
            alive[trainer.global_step] = sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

    run = build(data)
    queued = len(torch.cuda._queued_calls)
    fit(run, Alive())
    assert alive[7] <= alive[4], "one step after a log point, twice; of the batches read ahead fewer are left"
    assert len(torch.cuda._queued_calls) == queued


@pytest.mark.distributed
@pytest.mark.parametrize("micro_batch_sequences", [8, 2], ids=["whole", "accumulating"])
def test_gradients_are_reduced_once_a_step_under_ddp(micro_batch_sequences, data, tmp_path, monkeypatch):
    """Four micro-steps a step reduce as often as one: each bucket once. One rank is enough for DDP to be real."""
    monkeypatch.chdir(tmp_path)
    reduced: dict[int, list[int]] = {}

    class Reductions(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            replicas: Any = trainer.strategy.model
            replicas.register_comm_hook(trainer, self.reduce)

        @staticmethod
        def reduce(trainer, bucket):
            reduced.setdefault(trainer.global_step, []).append(bucket.index())
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

    fit(build(data, "strategy=ddp", f"batch.micro_batch_sequences={micro_batch_sequences}"), Reductions())
    assert len(reduced) == STEPS
    assert all(len(buckets) == len(set(buckets)) >= 1 for buckets in reduced.values()), reduced
