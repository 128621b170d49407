"""What `init_from=FOLDER` brings by itself where `lmtrain import` made FOLDER: options that Hydra finds in it."""

from collections.abc import Mapping
from pathlib import Path

OPTION = "imported"
EXPERIMENT = Path("experiment", f"{OPTION}.yaml")


def imported_folder(given: Mapping[str, str]) -> str | None:
    """Return the imported folder that a command line starts from, in which its options are."""
    folder = given.get("init_from")
    return folder if folder and (Path(folder) / EXPERIMENT).is_file() else None


def imported_options(given: Mapping[str, str]) -> list[str]:
    """Return the overrides that an imported folder stands for; a model or experiment that was typed wins."""
    is_needed = imported_folder(given) is not None and not {"experiment", "model"} & set(given)
    return [f"experiment={OPTION}"] if is_needed else []
