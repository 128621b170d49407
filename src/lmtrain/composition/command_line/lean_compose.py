"""Compose without two things that Hydra and OmegaConf do again for each of some fifty options.

Hydra 1.3 makes a config of all choices so far, which only a defaults list with an interpolation reads. OmegaConf 2.3
makes its YAML loader anew for each file, and in Python, where libyaml (which its 2.4 takes) reads the same. Together
they are a fifth of a short command.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import hydra._internal.defaults_list as hydra_defaults
import omegaconf._utils as omegaconf_utils

CHOICES: Final = "_create_interpolation_map"
LOADER: Final = "get_yaml_loader"


@contextmanager
def lean_compose() -> Generator[None]:
    """Do neither as long as this lasts."""
    with _replaced(hydra_defaults, CHOICES, _where_needed), _replaced(omegaconf_utils, LOADER, _made_once):
        yield


@contextmanager
def _replaced(module: Any, name: str, replacement: Callable[[Any], Any]) -> Generator[None]:
    """Put what is made of a function in its place; a later version without it does as it does."""
    own = getattr(module, name, None)
    if own is None:
        yield
        return
    setattr(module, name, replacement(own))
    try:
        yield
    finally:
        setattr(module, name, own)


def _made_once(make_loader: Callable[[], Any]) -> Callable[[], Any]:
    """Return always the same YAML loader, on libyaml where that is at hand: theirs derives from yaml.SafeLoader."""
    yaml: Any = omegaconf_utils.yaml
    slow = yaml.SafeLoader
    yaml.SafeLoader = getattr(yaml, "CSafeLoader", slow)
    try:
        loader = make_loader()
    finally:
        yaml.SafeLoader = slow
    return lambda: loader


def _where_needed(known_choices: Callable[..., Any]) -> Callable[..., Any]:
    """Return a map of choices only to a list that has an interpolation."""

    def choices(overrides: Any, defaults_list: Sequence[Any], *more: Any) -> Any:
        is_read = any(each.is_interpolation() for each in defaults_list)
        return known_choices(overrides, defaults_list, *more) if is_read else None

    return choices
