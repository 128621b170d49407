"""Which code a config may name, and finding it.

The allow-list is a boundary of ours: Hydra 1.3.8 blocks some targets and lets others run code (torch.load with
weights_only=False among them), and 1.4 will ask for such a list. Only the command line can extend it.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmtrain.errors import ConfigurationError, suggest

ALLOWED_PREFIXES = ("lmtrain.", "data_pipelines.", "lightning.pytorch.callbacks.", "torch.optim.", "torchao.optim.")


def word_of(node: Mapping[str, Any]) -> str:
    """Return the last part of a node's target, which is the option's word."""
    return str(node["_target_"]).rpartition(".")[2]


def find_target(name: str, *, key: str, allowed: Sequence[str] = ()) -> Callable[..., Any]:
    """Return the class or function that `key`._target_ names.

    Raises:
        ConfigurationError: The name is outside the allow-list, or does not exist.
    """
    prefixes = (*ALLOWED_PREFIXES, *allowed)
    if not name.startswith(prefixes):
        msg = (
            f"{key}._target_={name} is not allowed: a target starts with {', '.join(prefixes)}."
            f" To use your own code, add --allow-target {name.rpartition('.')[0]}. on the command line."
        )
        raise ConfigurationError(msg)
    module_name, _, attribute = name.rpartition(".")
    module = _import_module(module_name, key=key, target=name)
    found = getattr(module, attribute, None)
    if not callable(found):
        msg = f"{key}._target_={name}: {module_name} has no {attribute}.{suggest(attribute, vars(module))}"
        raise ConfigurationError(msg)
    if not f"{found.__module__}.".startswith(prefixes):
        msg = f"{key}._target_={name} only passes on {found.__module__}.{attribute}, which is not allowed."
        raise ConfigurationError(msg)
    return found


def _import_module(module_name: str, *, key: str, target: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not module_name.startswith(missing.name):
            raise
        package = missing.name.rpartition(".")[0]
        names = _siblings(package)
        near = suggest(missing.name.rpartition(".")[2], names)
        msg = f"{key}._target_={target}: there is no module {missing.name}.{near}"
        raise ConfigurationError(msg) from missing


def _siblings(package: str) -> list[str]:
    spec = importlib.util.find_spec(package) if package else None
    folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    return [path.stem for folder in folders for path in Path(folder).iterdir() if not path.name.startswith("_")]
