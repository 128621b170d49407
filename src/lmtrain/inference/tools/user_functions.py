"""A person's Python functions, callable by a model: FILE.py:FUNCTION or MODULE:FUNCTION."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from lmtrain.errors import ConfigurationError, suggest


def load_function(spec: str) -> tuple[str, Callable[..., Any]]:
    """Return a function's name and the function; its file's code runs.

    Raises:
        ConfigurationError: There is no such file, module or function.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigurationError(f"--tool {spec} names no function; nearest valid: --tool FILE.py:FUNCTION.")
    module = _module(place, spec)
    function = getattr(module, name, None)
    if not callable(function):
        names = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise ConfigurationError(f"--tool {spec}: {place} has no function {name}.{suggest(name, names)}")
    return name, function


def _module(place: str, spec: str) -> ModuleType:
    path = Path(place)
    try:
        if path.suffix != ".py":
            return importlib.import_module(place)
        found = importlib.util.spec_from_file_location(path.stem, path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    except Exception as problem:  # a file of the user's may raise anything while it is read
        raise ConfigurationError(f"--tool {spec}: {place} cannot be read: {problem}.") from problem
    return module
