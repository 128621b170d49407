"""Compose without needless work of hydra-core 1.3 and OmegaConf 2.3; the config is the same.

Hydra makes a config of all choices so far at each of 55 files, for interpolations in lists of defaults: 0.08 of the
0.26 s of composing. OmegaConf reads each file with a class on the parser in Python:
0.04 s more than libyaml takes.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import yaml
from hydra._internal import defaults_list
from omegaconf import _utils as parts
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from lmtrain.training.lean_import import collecting_later

MAP: Final = "hydra._internal.defaults_list._create_interpolation_map".rpartition(".")[2]
LOADER: Final = "get_yaml_loader"


@contextmanager
def lean_composing() -> Generator[None]:
    """Make that config only where a list names an option by another's, and look for garbage only afterwards."""
    with (
        collecting_later(),
        _replaced(defaults_list, MAP, _made_if_asked),
        _replaced(parts, LOADER, _with_libyaml),
    ):
        yield


@contextmanager
def _replaced(module: Any, name: str, changed: Any) -> Generator[None]:
    """Replace a function by `changed(function)` in this context; a version without it is left alone."""
    original = getattr(module, name, None)
    if original is None:
        yield
        return
    setattr(module, name, changed(original))
    try:
        yield
    finally:
        setattr(module, name, original)


def _made_if_asked(make_map: Any) -> Any:
    def make(overrides: Any, listed: Sequence[Any], self_added: bool) -> Any:  # noqa: FBT001  as Hydra calls it
        asked = any(each.is_interpolation() for each in listed)
        return make_map(overrides, listed, self_added) if asked else None

    return make


@cache
def _with_libyaml(get_loader: Any) -> Any:
    loader: Any = get_loader()
    parser: Any = yaml.CSafeLoader.__mro__[1] if yaml.__with_libyaml__ else None
    if parser is not None and not issubclass(loader, parser):  # another thread may have replaced it

        class Loader(parser, loader):
            """OmegaConf's own rules behind libyaml's parser."""

            def __init__(self, stream: Any) -> None:
                parser.__init__(self, stream)
                SafeConstructor.__init__(self)
                Resolver.__init__(self)

        loader = Loader
    return lambda: loader
