"""Find and compare the checkpoints of a run, without reading their tensors."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, VALIDATION_BYTES
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage import foreign_json
from lmtrain.storage.hashed_folder import MANIFEST, damage

NOT_SET = "not set"
OPTIMIZER: Final = "optimizer._target_"
FINGERPRINT: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
MOST_TOLD: Final = 5  # differing settings in one message


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
    words: Sequence[str] = (),
    keep: str = "",
) -> dict[str, str]:
    """Refuse to resume from a checkpoint of another model, data set, tokenizer, seed or batch.

    Return the differences allowed by their names, each as OLD -> NEW. No name allows those in `fixed`, with the reason.
    `words` would bring the checkpoint's values back; `keep` are words by which the rest of the changes can be allowed.

    Raises:
        ConfigurationError: Naming each other field, or one that is allowed and cannot differ.
    """
    names, fixed = sorted({*facts.identity, *identity}), fixed or {}
    differing = [name for name in names if facts.identity.get(name) != identity.get(name)]
    refused = [name for name in differing if name not in allowed or name in fixed]
    if refused:
        told = _told(refused, identity, facts.identity)
        raise ConfigurationError(
            f"Checkpoint {facts.path} belongs to another run: {told}. {_ways_on(differing, fixed, words, keep)}, or "
            "start a new run with another run.name" + (f" and init_from={facts.path.parents[1]}." if keep else ".")
        )
    return {name: f"{_value(facts.identity, name)} -> {_value(identity, name)}" for name in differing}


def _told(names: Sequence[str], here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Write both values of each name; of many the most telling ones: the part itself, then settings that both have."""
    in_order = sorted(names, key=lambda name: (not name.endswith("._target_"), not (name in here and name in there)))
    shown = [*names] if len(names) <= MOST_TOLD else in_order[: MOST_TOLD - 1]
    more = f"; and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return "; ".join(f"{name}={_value(here, name)}, there {_value(there, name)}" for name in shown) + more


def _value(facts: Mapping[str, Any], name: str) -> str:
    """Write a fact; of a fingerprint its beginning, as in a folder's name."""
    return FINGERPRINT.sub(r"\1", str(facts.get(name, NOT_SET)))


def _listed(names: Sequence[str]) -> str:
    """Write names, of many their parts: model.* for all of a model's."""
    parts = dict.fromkeys(f"{name.partition('.')[0]}.*" if "." in name else name for name in names)
    return ", ".join(names if len(names) <= MOST_TOLD else parts)


def _ways_on(differing: Sequence[str], fixed: Mapping[str, str], words: Sequence[str], keep: str) -> str:
    """Say why some names cannot be allowed, and with which word the others are: in quotes, as every shell takes it."""
    can = [name for name in differing if name not in fixed]
    word = f"'run.allow_changes=[{','.join(can)}]'"
    back = f"Put back {shlex.join(words)}" if words else "Put these back"
    if not fixed:
        return f"{back}, or go on otherwise with {word}"
    by_reason = {reason: [name for name in differing if fixed.get(name) == reason] for reason in fixed.values()}
    why = " ".join(f"{_listed(names)} cannot be allowed: {reason}." for reason, names in by_reason.items())
    if keep:
        return f"{why} {back}, or go on with {keep} {word}"
    return f"{why} {back}" + (f" ({word} allows the others)" if can else "")


def require_same_left_out(facts: CheckpointFacts, left_out: tuple[int, ...]) -> None:
    """Refuse to resume where the steps done passed over other batches than these.

    Raises:
        ConfigurationError: Naming both.
    """
    if facts.left_out != left_out:
        raise ConfigurationError(
            f"Checkpoint {facts.path} was trained without batches {[*facts.left_out]} of the order of its "
            f"{format_count(facts.step, 'step')}, and batch.left_out says {[*left_out]}; nearest valid: "
            f"'batch.left_out={[*facts.left_out]}'."
        )
