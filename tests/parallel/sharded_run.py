"""One of two ranks that train a sharded model, started by test_fsdp.py: what happened goes to rank<r>.json."""

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.errors import EnvironmentProblem
from lmtrain.launch.detect import outer_launcher
from lmtrain.launch.process_group import join
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.llama import Llama
from lmtrain.parallel.mesh import mesh
from lmtrain.training.checkpointing.background_saves import BackgroundSaves, SaveOutcome
from lmtrain.training.checkpointing.checkpoint_io import FACTS
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.intervals import is_step_end
from lmtrain.training.module import CausalLMModule
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.trainer import make_trainer
from lmtrain.training.transforms import ModelTransforms
from lmtrain.training.weight_average import WeightAverage
from tests.hostile_pickles import in_a_value, in_metadata, make_hostile
from tests.leave import leave

NUM_LAYERS = 2
MICRO_STEPS = 2
BYTES_BEFORE_THE_FAULT = 1000
WHOLE_WEIGHTS = "whole.pt"
BATCH = Batch(context_tokens=16, tokens_per_step=16 * 4 * MICRO_STEPS, micro_batch_sequences=2)


class AtSteps(pl.Callback):
    """Acts at the end of some steps, notes how many gradients there are after each backward pass, and ends the run."""

    def __init__(self, actions: dict[int, Callable[[pl.Trainer], object]], *, last_step: int) -> None:
        self.actions, self.last_step = actions, last_step
        self.has_gradients: list[bool] = []

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.has_gradients.append(any(parameter.grad is not None for parameter in pl_module.parameters()))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if is_step_end(trainer, batch_idx) and trainer.global_step in self.actions:
            self.actions[trainer.global_step](trainer)
        trainer.should_stop = trainer.global_step >= self.last_step

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict) -> None:
        checkpoint[FACTS] = {"step": trainer.global_step, "tokens": 0, "identity": {}}


def build_model() -> Llama:
    """Build the model that is trained."""
    return Llama(
        width=16, num_layers=NUM_LAYERS, num_heads=2, feed_forward_width=32, vocab_size=257, max_context_tokens=16
    )


def fit(
    folder: Path, data: Path, callback: AtSteps, *, checkpoint: Path | None = None, **settings: Any
) -> CausalLMModule:
    """Train a tiny Llama, sharded over the ranks of this job, with two micro-steps a step."""
    num_ranks = dist.get_world_size()
    parallelism = mesh(option="fsdp", num_ranks=num_ranks, compute_dtype=torch.float32, **settings)
    batch = plan_batches(BATCH, num_ranks=num_ranks)
    with torch.device("meta"):
        model = build_model()
    module = CausalLMModule(
        model,
        loss=CrossEntropy(),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        schedule=lambda step, total_steps: 1.0 - step / (2 * total_steps),
        batch=batch,
        total_steps=4,
        seed=3,
        spikes=SpikeFilter(num_sigmas=0.5, window_steps=4),
        weight_average=WeightAverage(decay=0.9),
        transforms=ModelTransforms(parallelize=parallelism.parallelize),
    )
    trainer = make_trainer(
        strategy=parallelism.strategy,
        precision="32-true",
        devices=num_ranks,
        accelerator="cpu",
        accumulation_micro_steps=batch.accumulation_micro_steps,
        folder=folder,
        callbacks=[callback],
    )
    datamodule = TokenDataModule(folder=data, batch=batch, seed=3)
    trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
    return module


def save(folder: Path) -> Callable[[pl.Trainer], None]:
    """Return an action that saves the step under its name."""
    return lambda trainer: trainer.save_checkpoint(folder / "checkpoints" / f"step_{trainer.global_step:08d}")


def save_twice(folder: Path) -> Callable[[pl.Trainer], None]:
    """Return an action that saves the step, and all weights as one file beside it, from rank 0."""

    def act(trainer: pl.Trainer) -> None:
        save(folder)(trainer)
        module = trainer.lightning_module
        assert isinstance(module, CausalLMModule)
        assert module.weight_average is not None
        whole = {name: parameter.full_tensor() for name, parameter in module.language_model.named_parameters()}
        average = {name: parameter.full_tensor() for name, parameter in module.weight_average.named_parameters()}
        if trainer.is_global_zero:
            torch.save({"raw": whole, "ema": average}, folder / WHOLE_WEIGHTS)

    return act


def save_behind(folder: Path, notes: dict[str, Any]) -> Callable[[pl.Trainer], None]:
    """Return an action that lets a thread write the step, twice: the second time rank 1's disk is full."""

    def act(trainer: pl.Trainer) -> None:
        for name, rank_without_room in (("behind", None), ("behind_full", 1)):
            outcomes: list[SaveOutcome] = []
            saves = BackgroundSaves(from_bytes=0, report=outcomes.append)
            assert saves.is_possible(trainer, trainer.lightning_module)
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            if trainer.global_rank == rank_without_room:
                resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES_BEFORE_THE_FAULT, limits[1]))
            trainer.save_checkpoint(folder / name / "step_00000002", storage_options=saves.begin)
            saves.has_begun(2, stall_seconds=0.0, wait_seconds=0.0)
            saves.settle(trainer)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            notes[name] = [outcomes[0].problem, outcomes[0].num_bytes]

    return act


def save_on_a_full_disk(folder: Path, notes: dict[str, Any]) -> Callable[[pl.Trainer], None]:
    """Return an action that saves while rank 1 can write no more than a few bytes a file."""

    def act(trainer: pl.Trainer) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if trainer.global_rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES_BEFORE_THE_FAULT, limits[1]))
        try:
            save(folder)(trainer)
        except EnvironmentProblem as problem:
            notes["refusal"] = str(problem)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return act


def save_and_die(folder: Path) -> Callable[[pl.Trainer], None]:
    """Return an action in which rank 1 is killed by the kernel in the middle of writing its shard."""

    def act(trainer: pl.Trainer) -> None:
        if trainer.global_rank == 1:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES_BEFORE_THE_FAULT, BYTES_BEFORE_THE_FAULT))
        save(folder)(trainer)

    return act


@contextmanager
def counted_reductions() -> Generator[list[int]]:
    """Count the reduce-scatters that FSDP2 asks for: one list item each."""
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    original, calls = getattr(dist, name), []
    setattr(dist, name, lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs))
    try:
        yield calls
    finally:
        setattr(dist, name, original)


def parameter_hash(module: CausalLMModule) -> str:
    """Return a hash of this rank's slices of all parameters and their averages, to the last bit."""
    parts = [parameter.to_local().detach().numpy().tobytes() for parameter in module.parameters()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def swapped_in_and_out(module: CausalLMModule) -> bool:
    """Tell whether the model computes with the average meanwhile, and as before afterwards."""
    assert module.weight_average is not None
    model, tokens = module.language_model, torch.arange(16)[None]
    with torch.no_grad():
        own = model(tokens)
        with module.weight_average.in_place_of(model):
            averaged = model(tokens)
        again = model(tokens)
    return torch.equal(own, again) and not torch.equal(own, averaged)


def hostile_refusal(folder: Path, data: Path, attack: Callable[[Path, Path], None]) -> str:
    """Go on from a checkpoint that would run a command, and return why not."""
    checkpoint = folder / attack.__name__ / "step_00000002"
    if dist.get_rank() == 0:
        shutil.copytree(folder / "checkpoints" / "step_00000002", checkpoint)
        make_hostile(checkpoint, attack, folder / "witness")
    dist.barrier()
    try:
        fit(folder, data, AtSteps({}, last_step=4), checkpoint=checkpoint)
    except EnvironmentProblem as problem:
        return str(problem)
    return "not refused"


def round_trip(folder: Path, data: Path) -> dict[str, Any]:
    """Train four steps; save the second, fail to save the third; train the last two again from the checkpoint."""
    notes: dict[str, Any] = {}

    def save_step_2(trainer: pl.Trainer) -> None:
        save_twice(folder)(trainer)
        save_behind(folder, notes)(trainer)

    straight_callback = AtSteps({2: save_step_2, 3: save_on_a_full_disk(folder, notes)}, last_step=4)
    with counted_reductions() as calls:
        straight = fit(folder, data, straight_callback)
    resumed = fit(folder, data, AtSteps({}, last_step=4), checkpoint=folder / "checkpoints" / "step_00000002")
    behind = fit(folder, data, AtSteps({}, last_step=4), checkpoint=folder / "behind" / "step_00000002")
    notes["hostile_refusals"] = [hostile_refusal(folder, data, attack) for attack in (in_metadata, in_a_value)]
    notes["num_reductions"] = len(calls)
    notes["has_gradients"] = straight_callback.has_gradients
    with counted_reductions() as calls:
        often = fit(folder, data, AtSteps({}, last_step=1), reduce_every_micro_step=True)
    notes["num_reductions_of_each_micro_step"] = len(calls)
    notes["often_losses"] = {record.step: record.loss for record in often.step_metrics.drain()}
    for name, module in (("straight", straight), ("resumed", resumed), ("behind", behind)):
        notes[f"{name}_losses"] = {record.step: record.loss for record in module.step_metrics.drain()}
        notes[f"{name}_parameters"] = parameter_hash(module)
        assert module.spikes is not None
        notes[f"{name}_skipped"] = int(module.spikes.num_skipped)
    notes["average_swaps"] = swapped_in_and_out(resumed)
    return notes


def main(scenario: str, folder: Path, data: Path) -> None:
    """Play one scenario on this rank."""
    torch.set_num_threads(1)
    outer = outer_launcher(os.environ)
    assert outer is not None
    join(outer, timeout_seconds=60)
    if scenario == "killed":
        fit(folder, data, AtSteps({1: save(folder), 2: save_and_die(folder)}, last_step=3))
    notes = round_trip(folder, data)
    (folder / f"rank{outer.rank}.json").write_text(json.dumps(notes))
    leave()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
