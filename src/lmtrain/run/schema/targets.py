"""The code a config may name, and its look-up.

A target is a public class or function, of its slot's kind (slots.py), of a package on the allow-list.
The list is a boundary of ours: Hydra 1.3.8 blocks some targets and lets others run code (torch.load with
weights_only=False among them), and 1.4 will ask for such a list. Only the command line can extend it.
"""

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.run.schema.slots import Slot, describe, fits, slot_at

DOTTED_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")  # no letter that only looks like one
ALLOWED_PREFIXES = ("lmtrain.", "data_pipelines.", "lightning.pytorch.callbacks.", "torch.optim.", "torchao.optim.")


def word_of(node: Mapping[str, Any]) -> str:
    """Return the last part of a node's target: the option's word."""
    return str(node["_target_"]).rpartition(".")[2]


def find_target(name: str, *, key: str, allowed: Sequence[str] = (), slot: Slot | None = None) -> Callable[..., Any]:
    """Return the class or function of `key`._target_; `slot` None is the key's own.

    Raises:
        ConfigurationError: The name is outside the allow-list, private, does not exist, or is of another kind.
    """
    slot = slot or slot_at(key)
    packages = require_allowed(name, key=key, allowed=allowed, slot=slot)
    module_name, _, attribute = name.rpartition(".")
    module = _import_module(module_name, key=key, target=name)
    found = getattr(module, attribute, None)
    if not callable(found):
        msg = f"{key}._target_={name}: {module_name} has no {attribute}.{suggest(attribute, vars(module))}"
        raise ConfigurationError(msg)
    if not f"{found.__module__}.".startswith(packages):
        msg = f"{key}._target_={name} only passes on {found.__module__}.{attribute}, which is not allowed."
        raise ConfigurationError(msg)
    if not (fits(found, slot) or (name.startswith(tuple(allowed)) and _says_nothing(found))):
        msg = f"{key}._target_={name} is of another kind: {key} takes {describe(slot)}"
        raise ConfigurationError(f"{msg}, a class of that kind or a function whose return annotation names it.")
    return found


def require_allowed(name: str, *, key: str, allowed: Sequence[str], slot: Slot) -> tuple[str, ...]:
    """Return the packages of a slot's targets, without an import of the name.

    Raises:
        ConfigurationError: The name is outside of them, or private.
    """
    if not DOTTED_NAME.fullmatch(name):
        raise ConfigurationError(f"{key}._target_={name!r} is no dotted name, as lmtrain.models.llama.Llama is.")
    packages = (*(ALLOWED_PREFIXES if slot.packages is None else slot.packages), *allowed)
    if not name.startswith(packages):
        raise ConfigurationError(_not_allowed(name, key=key, packages=packages))
    if any(part.startswith("_") for part in name.split(".")):
        raise ConfigurationError(f"{key}._target_={name} is private; a target is a public class or function.")
    return packages


def import_target(name: str) -> Callable[..., Any]:
    """Return the class or function of a checked target."""
    module_name, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module_name), attribute)


def _not_allowed(name: str, *, key: str, packages: Sequence[str]) -> str:
    """Refuse a target without its own package in the advice: it may stand in somebody else's file."""
    if not packages:
        return f"{key}._target_={name} is not allowed: {key} takes plain values alone; leave _target_ out."
    return (
        f"{key}._target_={name} is not allowed: a target here starts with {', '.join(packages)};"
        " code that you wrote yourself is allowed by --allow-target my_package. on the command line; where a file of"
        " someone else names this target, do not allow it."
    )


def _says_nothing(found: Callable[..., Any]) -> bool:
    """Tell whether a function has no return annotation: accepted in code explicitly allowed by a person."""
    return inspect.isfunction(found) and "return" not in found.__annotations__


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
