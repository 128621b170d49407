"""Find and compare the checkpoints of a run, without reading their tensors."""

import logging
import math
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, VALIDATION_BYTES
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage import foreign_json
from lmtrain.storage.checkpoint_layout import STATE
from lmtrain.storage.hashed_folder import MANIFEST, damage, write_atomically

NOT_SET = "not set"
OPTIMIZER: Final = "optimizer._target_"
FINGERPRINT: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
MOST_SHOWN: Final = 5  # differing settings in one message


_LOG = logging.getLogger(__name__)
FACTS: Final = "lmtrain"


@dataclass
class HeldOutScores:
    """Metrics of this attempt's newest validation, all better when lower, alike on all ranks; step None: none yet.

    `num_bytes` were read; scores of other bytes do not compare. `keeps_best` asks for a checkpoint of each best one, by
    its `metric`.
    """

    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    num_bytes: int = 0
    keeps_best: bool = False
    metric: str = BITS_PER_BYTE
    _best: float = field(default=math.inf, init=False)
    _best_num_bytes: int = field(default=0, init=False)

    def is_new_best(self, step: int) -> bool:
        """Return once whether the validation after a step is to be kept: better than all before, on the same bytes."""
        if not self.keeps_best or self.step != step:
            return False
        if self._best_num_bytes != self.num_bytes:
            self._best, self._best_num_bytes = math.inf, self.num_bytes
        value, before = self.metrics.get(self.metric, math.inf), self._best
        self._best = min(before, value)
        return value < before


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """A checkpoint's manifest: optimizer steps and tokens done, identity of its run, metrics at that step.

    `left_out` are the batches that those steps passed over; `attempt` wrote it (None: before manifests said so).
    """

    path: Path
    step: int
    tokens: int
    identity: dict[str, Any]
    metrics: dict[str, float]
    left_out: tuple[int, ...] = ()
    attempt: int | None = None


def list_checkpoints(folder: Path) -> list[CheckpointFacts]:
    """Return the checkpoints with a readable manifest in a folder, oldest first."""
    found = [read_facts(path.parent) for path in folder.glob(f"step_*/{MANIFEST}")]
    return sorted((facts for facts in found if facts), key=lambda facts: facts.step)


def best_of(checkpoints: Sequence[CheckpointFacts], *, metric: str = BITS_PER_BYTE) -> CheckpointFacts | None:
    """Return the checkpoint of the lowest value of a metric, among those scored on the bytes of the newest score."""
    scored = [facts for facts in checkpoints if metric in facts.metrics]
    comparable = [
        facts for facts in scored if facts.metrics.get(VALIDATION_BYTES) == scored[-1].metrics.get(VALIDATION_BYTES)
    ]
    return min(comparable, key=lambda facts: facts.metrics[metric], default=None)


def read_facts(path: Path) -> CheckpointFacts | None:
    """Read one checkpoint's manifest, or None where it is damaged."""
    try:
        manifest = foreign_json.read(path / MANIFEST)
        return CheckpointFacts(
            path=path,
            step=int(manifest["step"]),
            tokens=int(manifest["tokens"]),
            identity=dict(manifest["identity"]),
            metrics=dict(manifest.get("metrics", {})),
            left_out=tuple(map(int, manifest.get("left_out", ()))),
            attempt=None if manifest.get("attempt") is None else int(manifest["attempt"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def newest_whole(folder: Path, *, fix: str = "Name another run.") -> tuple[CheckpointFacts | None, list[str]]:
    """Return the newest undamaged checkpoint and a line for each newer one passed over; `fix` ends a refusal.

    Raises:
        EnvironmentProblem: There are checkpoints, but every one is damaged: never a silent start from step 0.
    """
    passed_over: list[str] = []
    for path in sorted(folder.glob("step_*"), reverse=True):
        facts = read_facts(path)
        problem = damage(path) or (None if facts else f"{MANIFEST} has no step, tokens and identity")
        if problem is None:
            return facts, passed_over
        passed_over.append(f"{path.name} is damaged: {problem}")
    if passed_over:
        msg = f"No checkpoint in {folder} is whole: {'; '.join(passed_over)}. {fix}"
        raise EnvironmentProblem(msg)
    return None, passed_over


def require_same_identity(
    facts: CheckpointFacts,
    identity: dict[str, Any],
    *,
    allowed: Collection[str] = (),
    fixed: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Refuse to resume from a checkpoint of another model, data set, tokenizer, seed or batch.

    Return the differences allowed by their names, each as OLD -> NEW. Those in `fixed`, with the reason, can never be
    allowed.
    """
    fixed = fixed or {}
    names = sorted({*facts.identity, *identity})
    differing = [name for name in names if facts.identity.get(name) != identity.get(name)]
    refused = [name for name in differing if name not in allowed or name in fixed]
    # A changed part first, then settings that both sides have.
    refused.sort(key=lambda name: (not name.endswith("._target_"), name not in facts.identity))
    if refused:
        shown = [f"{name}={_shown(identity, name)}, there {_shown(facts.identity, name)}" for name in refused]
        shown[MOST_SHOWN:] = [f"and {len(shown) - MOST_SHOWN} more"] if len(shown) > MOST_SHOWN else []
        reasons = "".join(f" {name} cannot be allowed: {fixed[name]}." for name in refused if name in fixed)
        allow = "" if reasons else f"allow them by 'run.allow_changes=[{','.join(differing)}]', "
        raise ConfigurationError(
            f"Checkpoint {facts.path} belongs to another run: {'; '.join(shown)}.{reasons} Put these back, {allow}or "
            "start a new run with another run.name."
        )
    return {name: f"{_shown(facts.identity, name)} -> {_shown(identity, name)}" for name in differing}


def _shown(facts: Mapping[str, Any], name: str) -> str:
    """Return a fact as text; of a fingerprint its beginning, as in a folder's name."""
    return FINGERPRINT.sub(r"\1", str(facts.get(name, NOT_SET)))


def require_same_left_out(facts: CheckpointFacts, left_out: tuple[int, ...]) -> None:
    """Refuse to resume where the steps done passed over other batches than these."""
    if facts.left_out != left_out:
        raise ConfigurationError(
            f"Checkpoint {facts.path} was trained without batches {[*facts.left_out]} of the order of its "
            f"{format_count(facts.step, 'step')}, and batch.left_out says {[*left_out]}. Did you mean "
            f"'batch.left_out={[*facts.left_out]}'?"
        )


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Delete all but the `keep_last` newest and, with `keep_best`, the best by the metric of the run's `scores`."""

    keep_last: int
    keep_best: bool
    scores: HeldOutScores = field(default_factory=HeldOutScores)

    def after(self, new: Path) -> None:
        """Delete the unwanted ones once a new checkpoint is whole.

        Raises:
            EnvironmentProblem: It is not; everything older stays.
        """
        checkpoints = list_checkpoints(new.parent)
        best = best_of(checkpoints, metric=self.scores.metric) if self.keep_best else None
        unwanted = [facts.path for facts in checkpoints[: -self.keep_last] if facts != best]
        if unwanted and (problem := damage(new)):
            raise EnvironmentProblem(f"{new} was written, but {problem}; older checkpoints are kept.")
        for path in unwanted:
            _delete(path)


@dataclass(frozen=True, kw_only=True)
class WriteAndRetain:
    """Write a checkpoint, then delete the ones it replaces."""

    write: Callable[[], int]
    path: Path
    retention: Retention

    def __call__(self) -> int:
        """Return the bytes written."""
        num_bytes = self.write()
        self.retention.after(self.path)
        return num_bytes


def set_aside_after(folder: Path, step: int) -> None:
    """Rename checkpoints of later steps: they belong to an abandoned course of this run."""
    for path in folder.glob("step_*"):
        number = path.name.removeprefix("step_")
        if number.isdigit() and int(number) > step:
            left = path.with_name(f"left_{path.name}_{time.time_ns()}")
            path.rename(left)
            _LOG.warning("Checkpoint %s is of a later step than the one resumed from; it is now %s.", path, left.name)


def _delete(path: Path) -> None:
    """Delete a checkpoint; a crash on the way leaves nothing like one."""
    hidden = path.with_name(f".{path.name}.deleting")
    try:
        path.rename(hidden)
        shutil.rmtree(hidden)
    except OSError as problem:
        _LOG.warning("Old checkpoint %s could not be deleted: %s", path, problem)


@dataclass(frozen=True)
class WriteState:
    """Write a checkpoint atomically; its `lmtrain` entry becomes the manifest's facts."""

    checkpoint: dict[str, Any]
    path: Path

    def __call__(self) -> int:
        """Write it, and return its bytes."""
        import torch  # commands that only list checkpoints do without it

        write_atomically(
            self.path,
            facts=self.checkpoint.get(FACTS, {}),
            write=lambda folder: torch.save(self.checkpoint, folder / STATE),
        )
        return (self.path / STATE).stat().st_size
