"""How many tokens a config's data has to train on, where it is prepared already; nothing is prepared for a plan.

A folder that is named outright, or each of a mixture, is asked itself. Where settings decide the folder, only preparing
tells its name: a run that has come to know it remembers it in the cache, for later plans of the same settings.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from lmtrain.composition.canonical import canonical
from lmtrain.tracking.atomic_files import read_json, write_json

MANIFEST = "dataset.json"


def prepared_train_tokens(config: Mapping[str, Any]) -> int | None:
    """Return the training tokens of all folders that the config reads, None where one of them is not known."""
    sources: dict[str, dict[str, Any]] | None = config["data"].get("sources")
    if sources:
        return _sum(_tokens_of(source.get("path")) for source in sources.values())
    return _tokens_of(_folder_of(config))


def masked_documents(config: Mapping[str, Any], folder: Path | None = None) -> dict[int, int] | None:
    """Return how many documents have which length, where they do not see one another and the data is known.

    `folder` None is the one that the config's data is known to come to. Of a mixture the first source tells.
    """
    if not config["packing"].get("document_mask"):
        return None
    if folder is None:
        sources: dict[str, dict[str, Any]] = config["data"].get("sources") or {}
        found = next((source.get("path") for source in sources.values()), None) or _folder_of(config)
        folder = None if found is None else Path(found)
    if folder is None or not (folder / MANIFEST).exists():
        return None
    from lmtrain.data.document_lengths import document_lengths  # numpy: only where it counts documents
    from lmtrain.data.shards import open_dataset

    return document_lengths(open_dataset(folder))


def _folder_of(config: Mapping[str, Any]) -> str | None:
    node = config["data"].get("folder")
    if not isinstance(node, dict):
        return None
    settings = cast("dict[str, Any]", node)
    remembered: dict[str, Any] = {} if "path" in settings else read_json(_memory(config))
    return settings.get("path") or remembered.get("folder")


def remember_folder(config: Mapping[str, Any], folder: Path) -> None:
    """Keep which folder the data's settings came to."""
    if not isinstance(config["data"].get("folder"), dict):
        return
    memory, content = _memory(config), {"folder": str(folder.absolute())}
    if read_json(memory) != content:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, content)


def _memory(config: Mapping[str, Any]) -> Path:
    """Return the file of the cache that has the folder of these settings."""
    node = {name: value for name, value in config["data"]["folder"].items() if name not in ("engine", "num_processes")}
    content = json.dumps(canonical(node, key="folder"), sort_keys=True, default=str)
    return Path(config["run"]["cache"]) / "data" / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.json"


def _tokens_of(folder: str | None) -> int | None:
    if folder is None:
        return None
    manifest: dict[str, Any] = read_json(Path(folder) / MANIFEST)
    return manifest.get("splits", {}).get("train", {}).get("num_tokens")


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)
