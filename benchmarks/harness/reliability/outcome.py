"""A finished run's losses and last state, and where they differ from another run's."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lmtrain.training.checkpointing.checkpoint_io import AtomicCheckpointIO
from lmtrain.training.checkpointing.checkpoints import newest_whole


@dataclass(frozen=True)
class Outcome:
    """The loss of every step, and the weights and optimizer state of the last checkpoint by their names."""

    losses: dict[int, float]
    tensors: dict[str, torch.Tensor]


def read_outcome(run: Path) -> Outcome:
    """Read a run's folder.

    Raises:
        ValueError: A step is there twice, or there is no checkpoint.
    """
    newest, _ = newest_whole(run / "checkpoints")
    if newest is None:
        raise ValueError(f"{run} has no checkpoint")
    state = AtomicCheckpointIO().load_checkpoint(newest.path)
    tensors = _tensors({name: state[name] for name in ("state_dict", "optimizer_states")})
    return Outcome(read_losses(run), dict(tensors))


def read_losses(run: Path) -> dict[int, float]:
    """Return each step's loss.

    Raises:
        ValueError: A step is there twice.
    """
    found: dict[int, float] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        point = json.loads(line)
        if "train/loss" not in point["metrics"]:
            continue
        if point["step"] in found:
            raise ValueError(f"{run} has step {point['step']} twice")
        found[point["step"]] = point["metrics"]["train/loss"]
    return found


def difference(found: Outcome, expected: Outcome, *, allowed: float = 0.0) -> str | None:
    """Say where two outcomes differ: losses by more than a share `allowed`, any bit of a tensor where it is 0."""
    if found.losses.keys() != expected.losses.keys():
        return f"steps {sorted(found.losses.keys() ^ expected.losses.keys())} are in one run alone"
    for step, loss in expected.losses.items():
        if abs(found.losses[step] - loss) > allowed * abs(loss):
            return f"step {step} has loss {found.losses[step]!r} instead of {loss!r}"
    if allowed:
        return None
    if found.tensors.keys() != expected.tensors.keys():
        return f"tensors {sorted(found.tensors.keys() ^ expected.tensors.keys())} are in one run alone"
    wrong = [name for name, tensor in expected.tensors.items() if not torch.equal(found.tensors[name], tensor)]
    return f"{wrong[0]} differs" if wrong else None


def _tensors(value: Any, name: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [found for key, part in parts for found in _tensors(part, f"{name}.{key}")]
