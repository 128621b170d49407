"""The words for a model to start from, where a run needs one and names none."""

from pathlib import Path

from lmtrain.run.run_config import RunConfig


def start_of(config: RunConfig) -> str:
    """Return the newest run with a checkpoint below run.root, else the command of an import, as the nearest words."""
    saved = Path(config.run.root).glob("*/checkpoints/step_*/manifest.json")
    if newest := max(saved, key=lambda file: file.stat().st_mtime, default=None):
        return f"nearest valid: init_from={newest.parents[2]}, or the folder of `lmtrain import`."
    return "nearest valid: init_from=runs/base, made by `lmtrain import hf FOLDER runs/base`, or a run here."
