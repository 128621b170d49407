"""The folder sent by `lmtrain push`: a run's inference bundle, or its whole archive, with a manifest and no secret."""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.interop.hf_export import export_folder
from lmtrain.run.stored_runs.checkpoint_source import CheckpointSource, find_source
from lmtrain.run.stored_runs.export_source import model_to_export
from lmtrain.storage.hashed_folder import MANIFEST, require_whole, write_atomically
from lmtrain.tracking.redaction import redact_text
from lmtrain.training.checkpointing.weights import Kind

What = Literal["bundle", "archive"]
FOLDER: Final = ".push"
TEXT: Final = (".json", ".jsonl", ".yaml", ".yml", ".md", ".html", ".txt", ".diff", ".csv", ".jinja", ".log")
NOT_SENT: Final = ("checkpoints", FOLDER, "mlflow")


def make_push_folder(run: Path, what: What, *, weights: Kind = "raw", allowed: Sequence[str] = ()) -> Path:
    """Fill a hidden folder of the run with the newest checkpoint's bundle or archive, and return it.

    Raises:
        ConfigurationError: It is no run.
        EnvironmentProblem: The checkpoint is damaged, or an unchangeable file holds a secret.
    """
    source = find_source(run, key="RUN")
    if isinstance(source, Path):
        raise ConfigurationError(f"RUN={run} is an imported folder; `lmtrain push` sends a run of lmtrain.")
    folder = source.run / FOLDER / what
    folder.parent.mkdir(exist_ok=True)
    if what == "archive":
        facts = {"run": source.run.name, "step": source.checkpoint.step, "what": what}
        write_atomically(folder, facts=facts, write=lambda aside: _archive(source, aside))
    else:
        shutil.rmtree(folder, ignore_errors=True)
        model = model_to_export(source.checkpoint.path, weights=weights, allowed=allowed)
        export_folder(replace(model, facts=replace(model.facts, name=source.run.name)), folder)
        for path in _texts(folder):
            _require_clean(path, where=folder)
    return folder


def _archive(source: CheckpointSource, aside: Path) -> None:
    """Link the newest checkpoint as it is, and copy the run's other files without secrets."""
    place = aside / "checkpoints" / source.checkpoint.path.name
    _link_all(source.checkpoint.path, place)
    require_whole(place)  # of links: the run may delete its own meanwhile
    for path in _texts(place):
        _require_clean(path, where=place)
    for path in _files(source.run):
        target = aside / path.relative_to(source.run)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in TEXT:
            target.write_text(redact_text(path.read_text(encoding="utf-8", errors="replace")), encoding="utf-8")
        else:
            shutil.copyfile(path, target)


def _files(run: Path) -> Iterator[Path]:
    """Yield a run's files outside checkpoints; hidden ones, pipes and links are none of its results."""
    for path in sorted(run.rglob("*")):
        parts = path.relative_to(run).parts
        is_own = parts[0] not in NOT_SENT and not any(part.startswith(".") for part in parts)
        if is_own and path.is_file() and not path.is_symlink():
            yield path


def _texts(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.suffix in TEXT and path.name != MANIFEST)


def _require_clean(path: Path, *, where: Path) -> None:
    """Refuse an unchangeable text with a secret.

    Raises: EnvironmentProblem with the file, and without the secret.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.name != "tokenizer.json" and redact_text(text) != text:
        raise EnvironmentProblem(
            f"{path.relative_to(where)} holds what looks like a secret, so that nothing was sent; remove it there."
        )


def _link_all(source: Path, target: Path) -> None:
    """Give a folder's files a second name: they stay where the run deletes its own; copied across file systems."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(path, place)


def _link(path: Path, place: Path) -> Any:
    try:
        os.link(path, place)
    except OSError:
        shutil.copyfile(path, place)
