"""The config.json of a folder of transformers, read without torch."""

from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.storage import foreign_json

CONFIG: Final = "config.json"
ADAPTER_CONFIG: Final = "adapter_config.json"  # of a folder of PEFT, in place of the other


def read_config_file(folder: Path) -> dict[str, Any]:
    """Return a folder's config.json.

    Raises:
        ConfigurationError: There is no such folder.
        DataError: It has no config.json, or one without an object.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        raise ConfigurationError(f"FOLDER={folder} is not a folder; name one that transformers' save_pretrained wrote.")
    if not path.is_file():
        raise DataError(f"{folder} has no {CONFIG}; name a folder that transformers' save_pretrained wrote.")
    try:
        content = foreign_json.read(path)
    except ValueError as problem:
        raise DataError(f"{path} is no JSON ({problem}); copy it again.") from problem
    if not isinstance(content, dict):
        raise DataError(f"{path} is not an object; copy it again.")
    return content
