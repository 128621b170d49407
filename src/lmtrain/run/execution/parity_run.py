"""Train configs' first steps in one process, then on ranks, and compare every gradient and weight.

One process writes its tensors step by step; each rank compares its own copy, or all ranks' parts together, with them.
"""

import contextlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from lmtrain.accounting.observed.parity_checks import OF_ALL, WEIGHTS_PER_GRADIENT, Kind, RankDifference, in_order
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, EnvironmentProblem
from lmtrain.launch.detect import outer_launcher
from lmtrain.launch.local import launch
from lmtrain.launch.process_group import join
from lmtrain.parallel.rank_reports import differing, whole
from lmtrain.run.execution.build import Run, build_run
from lmtrain.run.execution.caches import keep_caches_in
from lmtrain.run.execution.run import fit, quiet_libraries
from lmtrain.run.stored_runs.job import Job, job_of_rank
from lmtrain.storage import foreign_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.training.step_timer import Seen, StepWitness
from lmtrain.training.stopping import ended_by_signals

ENTRY_POINT: Final = "lmtrain.run.execution.parity_run:on_rank"
EXPECTED, FOUND, JOB, SETTINGS = "expected", "found.json", "job.json", "settings.json"
NUMBERS: Final[tuple[Kind, ...]] = ("tokens", "loss", "gradient norm")
SHARE_OF_WEIGHT: Final = 1e-4  # an update below it is as coarse as the weight's own rounding
Tensors = Mapping[str, Tensor]


def compare(pairs: Sequence[tuple[Job, Job]], *, num_steps: int, tolerance: float) -> list[tuple[RankDifference, ...]]:
    """Train pairs of jobs, alone and together, and return every pair's differences in order.

    All pairs are on the same number of ranks, and share one start of the processes; a job with secrets is by itself.

    Raises:
        EnvironmentProblem: The ranks failed; they have printed why.
        KeyboardInterrupt, SystemExit: A signal ended them.
    """
    for jobs in zip(*pairs, strict=True):
        for job in jobs:
            RunFolder(job.folder, root=Path(job.root)).create()
            job.save(job.folder / JOB)
        first = jobs[0]
        settings = {"num_steps": num_steps, "tolerance": tolerance, "folders": [str(job.folder) for job in jobs]}
        (first.folder / SETTINGS).write_text(json.dumps(settings))
        code = launch(
            first.folder / JOB,
            num_processes=first.config.trainer.devices,
            run_folder=first.folder,
            entry_point=ENTRY_POINT,
            more_environment=first.handed_over(),
        )
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        if code == EXIT_TERMINATED:
            raise SystemExit(code)  # the ranks have printed it
        if code:
            ranks = format_count(first.config.trainer.devices, "rank")
            raise EnvironmentProblem(f"parity: the training on {ranks} failed with code {code}.")
    found = [foreign_json.read(together.folder / FOUND) for _, together in pairs]
    return [in_order(RankDifference(**one) for one in differences) for differences in found]


def on_rank(path: Path) -> int:
    """Train the saved jobs on this rank, one after another: a single rank writes, several compare."""
    settings = foreign_json.read(path.parent / SETTINGS)
    quiet_libraries()
    outer = outer_launcher(os.environ)
    join(outer)
    rank = outer.rank if outer else 0
    for folder in settings["folders"]:
        job = job_of_rank(Path(folder) / JOB)
        keep_caches_in(Path(job.config.run.cache))
        with ended_by_signals(), contextlib.redirect_stdout(io.StringIO()):
            _train(job, settings["num_steps"], settings["tolerance"], rank=rank)
    return 0


def _train(job: Job, num_steps: int, tolerance: float, *, rank: int) -> None:
    run, expected = build_run(job, rank=rank, log=None), Path(job.root) / EXPECTED
    if job.config.num_ranks == 1:
        write_steps(run, expected, num_steps)
        return
    comparison = ExpectedSteps(run, expected, num_ranks=job.config.num_ranks, tolerance=tolerance)
    comparison.train(num_steps)
    if rank == 0:
        (job.folder / FOUND).write_text(json.dumps([asdict(one) for one in comparison.differences]))


def write_steps(run: Run, folder: Path, num_steps: int) -> None:
    """Train, and write the tensors of each step of one process, and its sums."""
    folder.mkdir()

    def see(step: int, kind: Literal["gradient", "weight"], tensors: Tensors) -> None:
        torch.save(whole(tensors, run.parallelism.in_model_order), folder / f"{kind}{step}.pt")

    for name, value in _trained(run, see, num_steps).items():
        torch.save(value, folder / f"{name}.pt")


class ExpectedSteps:
    """Compare the tensors of each step on these ranks with those of one process."""

    def __init__(self, run: Run, folder: Path, *, num_ranks: int, tolerance: float) -> None:
        self._run, self._folder, self._num_ranks, self._tolerance = run, folder, num_ranks, tolerance
        self.differences: list[RankDifference] = []

    def train(self, num_steps: int) -> None:
        """Train, and compare."""
        sums = _trained(self._run, self._see, num_steps)
        for kind in NUMBERS:
            for step, expected in self._read(kind).items():
                largest, scale = abs(sums[kind][step] - expected), abs(expected)
                ranks = () if largest <= self._tolerance * scale else tuple(range(self._num_ranks))
                found = RankDifference(step=step, kind=kind, largest=largest, scale=scale, ranks=ranks)
                self.differences.append(found)

    def _see(self, step: int, kind: Literal["gradient", "weight"], tensors: Tensors) -> None:
        expected: dict[str, Tensor] = self._read(f"{kind}{step}")
        scales = self._scales_of_weights(expected, step) if kind == "weight" else _scales(expected)
        tolerance = self._tolerance * (WEIGHTS_PER_GRADIENT if kind == "weight" else 1.0)
        allowed = {name: tolerance * scale for name, scale in scales.items()}
        found = differing(tensors, expected, allowed, self._run.parallelism.in_model_order)
        self.differences += [
            RankDifference(step=step, kind=kind, name=name, largest=largest, scale=scales.get(name, 0.0), ranks=ranks)
            for name, (largest, ranks) in found.items()
        ]

    def _scales_of_weights(self, expected: Tensors, step: int) -> dict[str, float]:
        """Return the largest update of each tensor, at least the rounding of the weights."""
        first: dict[str, Tensor] = self._read("weight0")
        updates = _scales({name: expected[name] - first[name] for name in expected})
        rounding = {name: SHARE_OF_WEIGHT * one.abs().max().item() for name, one in expected.items()}
        return {name: max(updates[name], rounding[name]) if step else rounding[name] for name in expected}

    def _read(self, name: str) -> Any:
        return torch.load(self._folder / f"{name}.pt", weights_only=True, mmap=True)


def _scales(tensors: Tensors) -> dict[str, float]:
    """Return the largest entry of each tensor, at least a share of the largest of all."""
    own = {name: one.abs().max().item() for name, one in tensors.items()}
    least = OF_ALL * max(own.values(), default=0.0)
    return {name: max(one, least) for name, one in own.items()}


def _trained(run: Run, see: Seen, num_steps: int) -> dict[Kind, dict[int, float]]:
    """Train `num_steps` steps; return their tokens, losses and gradient norms."""
    run.trainer.callbacks.append(StepWitness(see, num_steps=num_steps))  # pyright: ignore[reportAttributeAccessIssue]
    fit(run, None)
    records = run.module.step_metrics.drain()
    return {
        "tokens": {one.step: float(one.num_tokens) for one in records},
        "loss": {one.step: one.loss for one in records},
        "gradient norm": {one.step: one.gradient_norm for one in records},
    }
