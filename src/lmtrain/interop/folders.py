"""Folders of models, known without torch: those of transformers, those that an import made, and new ones.

A new folder is never written over an existing one, and never half written.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.models.transformers_config import plain_settings
from lmtrain.storage.damage import read_object
from lmtrain.storage.hashed_folder import write_atomically
from lmtrain.storage.hub import asking_hub

WITHOUT_EFFECT: Final = frozenset(
    {"attention", "init_std", "embedding_init_std", "head_init_std", "value_embedding_init_std", "zero_init_outputs"}
    | {"embedding_skip_start"}
)
CONFIG: Final = "config.json"
ADAPTER_CONFIG: Final = "adapter_config.json"  # of a folder of PEFT, in place of the other


def read_config_file(folder: Path) -> dict[str, Any]:
    """Return a folder's config.json."""
    path = folder / CONFIG
    if not folder.is_dir():
        raise ConfigurationError(f"FOLDER={folder} is not a folder; name one that transformers' save_pretrained wrote.")
    if not path.is_file():
        raise DataError(f"{folder} has no {CONFIG}; name a folder that transformers' save_pretrained wrote.")
    return read_object(path)


def class_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of config.json for the folder's own class in transformers; weights must not be quantized."""
    content = read_config_file(folder)
    if content.get("quantization_config"):
        raise DataError(f"{folder / CONFIG}: quantization_config is not supported with a model's own class.")
    return plain_settings(content)


def find_folder(name: Path) -> Path:
    """Return a folder of transformers, or that of a model of the Hub, from its cache or downloaded now."""
    if name.exists() or len(name.parts) != 2 or name.parts[0] in ("/", "..", "~"):
        return name
    from huggingface_hub import snapshot_download

    typed = name.as_posix()
    with asking_hub(f"FOLDER={typed}"):
        return Path(snapshot_download(typed, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))


FACTS = "import.json"
WEIGHTS, TOKENIZER, ORIGINAL = "weights", "tokenizer", "original"


def is_imported(folder: Path) -> bool:
    """Return whether an import made this folder."""
    return (folder / FACTS).is_file() and (folder / WEIGHTS).is_dir()


def imported_facts(folder: Path) -> dict[str, Any]:
    """Read an import's facts of its model."""
    return read_object(folder / FACTS, fix="import the model again")


def require_free(path: Path, *, name: str) -> None:
    """Refuse a taken place; `name` is its word on the command line."""
    if path.exists():
        raise ConfigurationError(
            f"{name}={path} is there already, and nothing is overwritten; name another, or move it."
        )


def make_folder(final: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a folder, afterwards visible as `final` with a manifest of its files, whole or absent."""
    require_free(final, name="OUT")
    write_atomically(final, facts={}, write=write)
