"""How many tokens a config's data has to train on, where it is prepared already; nothing is prepared for a plan."""

from pathlib import Path
from typing import Any

from lmtrain.tracking.atomic_files import read_json


def prepared_train_tokens(config: dict[str, Any], *, allowed: list[str]) -> int | None:
    """Return the training tokens of a folder that is named outright, None where that takes preparing to know."""
    del allowed
    node = config["data"].get("folder")
    path = node.get("path") if isinstance(node, dict) else None
    if path is None:
        return None
    manifest: dict[str, Any] = read_json(Path(path) / "dataset.json")
    splits: dict[str, Any] = manifest.get("splits", {})
    return splits.get("train", {}).get("num_tokens")
