"""Find and compare the checkpoints of a run, without reading their tensors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage import foreign_json
from lmtrain.storage.hashed_folder import MANIFEST, damage

NOT_SET = "not set"


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """A checkpoint's manifest: optimizer steps and tokens done, identity of its run, metrics at that step."""

    path: Path
    step: int
    tokens: int
    identity: dict[str, Any]
    metrics: dict[str, float]


def list_checkpoints(folder: Path) -> list[CheckpointFacts]:
    """Return the checkpoints with a readable manifest in a folder, oldest first."""
    found = [read_facts(path.parent) for path in folder.glob(f"step_*/{MANIFEST}")]
    return sorted((facts for facts in found if facts), key=lambda facts: facts.step)


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


def require_same_identity(facts: CheckpointFacts, identity: dict[str, Any]) -> None:
    """Refuse to resume from a checkpoint of another model, data set, tokenizer, seed or batch.

    Raises:
        ConfigurationError: Naming each different field.
    """
    names = sorted({*facts.identity, *identity})
    differing = [name for name in names if facts.identity.get(name) != identity.get(name)]
    if differing:
        differences = "; ".join(
            f"{name}={identity.get(name, NOT_SET)}, there {facts.identity.get(name, NOT_SET)}" for name in differing
        )
        msg = (
            f"Checkpoint {facts.path} belongs to another run: {differences}. "
            "Put these back, or start a new run with another run.name."
        )
        raise ConfigurationError(msg)
