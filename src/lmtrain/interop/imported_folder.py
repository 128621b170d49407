"""The layout of a folder of `lmtrain import`, known without torch, for command lines."""

from pathlib import Path

FACTS = "import.json"
WEIGHTS, TOKENIZER, ORIGINAL = "weights", "tokenizer", "original"


def is_imported(folder: Path) -> bool:
    """Tell whether an import made this folder."""
    return (folder / FACTS).is_file() and (folder / WEIGHTS).is_dir()
