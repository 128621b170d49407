"""The trials of a sweep: every combination of its keys' values, from a command line or an option."""

import itertools
from collections.abc import Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from lmtrain.errors import ConfigurationError


def trials_of(words: Sequence[str], *, swept: Mapping[str, str]) -> list[list[str]]:
    """Return the overrides of each trial, the last key's values varying fastest.

    `swept` are values by key, from a config's `hydra.sweeper.params`; a typed key takes their place.

    Raises:
        ConfigurationError: A range of numbers without steps: only a search can draw from it.
    """
    named = OverridesParser.create().parse_overrides([f"{key}={values}" for key, values in swept.items()])
    typed = OverridesParser.create().parse_overrides([*words])
    keys = {each.get_key_element() for each in typed}
    all_of_them = [*(each for each in named if each.get_key_element() not in keys), *typed]
    return [[*trial] for trial in itertools.product(*map(_values, all_of_them))]


def single(words: Sequence[str]) -> list[str]:
    """Return the words with one value in all trials."""
    parsed = OverridesParser.create().parse_overrides([*words])
    return [each.input_line or "" for each in parsed if not each.is_sweep_override()]


def typed_trials(words: Sequence[str]) -> list[list[str]]:
    """Return the words of each trial, as typed where they have one value in all.

    Raises:
        ConfigurationError: A word cannot be read.
    """
    try:
        fixed = single(words)
        swept = trials_of([word for word in words if word not in fixed], swept={})
    except (HydraException, OmegaConfBaseException) as problem:
        from lmtrain.run.compose.cut_values import unreadable  # only to refuse

        of_functions = [word for word in words if "(" in word]
        raise unreadable(str(getattr(problem, "override", " ".join(of_functions)))) from problem
    return [[*fixed, *(word.replace("\\ ", " ") for word in trial)] for trial in swept]


def _values(override: Override) -> list[str]:
    if override.is_delete():
        return [override.input_line or ""]
    if not override.is_sweep_override():
        return [f"{override.get_key_element()}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        line = override.input_line
        raise ConfigurationError(
            f"{line} has no steps; list values, KEY=A,B, or give a range(START,STOP,STEP); hydra/sweeper=optuna "
            "draws from it."
        )
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
