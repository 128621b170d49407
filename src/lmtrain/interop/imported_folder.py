"""The layout of a folder that `lmtrain import` made: known without torch, so that a command line can ask for it."""

from pathlib import Path

FACTS = "import.json"
WEIGHTS, TOKENIZER, ORIGINAL = "weights", "tokenizer", "original"


def is_imported(folder: Path) -> bool:
    """Tell whether an import made this folder."""
    return (folder / FACTS).is_file() and (folder / WEIGHTS).is_dir()
