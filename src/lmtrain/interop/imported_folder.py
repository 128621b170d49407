"""The layout of a folder of `lmtrain import`, known without torch, for command lines."""

from pathlib import Path
from typing import Any

from lmtrain.errors import DataError
from lmtrain.storage import foreign_json

FACTS = "import.json"
WEIGHTS, TOKENIZER, ORIGINAL = "weights", "tokenizer", "original"


def is_imported(folder: Path) -> bool:
    """Tell whether an import made this folder."""
    return (folder / FACTS).is_file() and (folder / WEIGHTS).is_dir()


def imported_facts(folder: Path) -> dict[str, Any]:
    """Read an import's facts of its model.

    Raises:
        DataError: The file is damaged.
    """
    try:
        facts = foreign_json.read(folder / FACTS)
    except (OSError, ValueError) as problem:
        raise DataError(f"{folder / FACTS} cannot be read ({problem}); import the model again.") from problem
    if not isinstance(facts, dict):
        raise DataError(f"{folder / FACTS} is no object; import the model again.")
    return facts
