"""A search on the command line: its spaces in Hydra's syntax, its settings, and the words of a trial."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import Arguments
from lmtrain.run.compose.compose import parsed_overrides, single, sweep_nodes
from lmtrain.run.schema.node import Node
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import Dimension, Interval, ListedValues, Space, interval, num_of_grid, require_space

OPTION: Final = "hparams_search="
OF_THE_SEARCH: Final = ("sweep.", "hydra/", "hydra.", OPTION)  # words of no trial
OF_A_GRID: Final = ("sweep.parallel", "sweep.launcher", "sweep.slurm")


@dataclass(frozen=True, kw_only=True)
class SearchWords:
    """A search as typed: its settings, its space, and the words shared by all trials."""

    settings: SearchSettings
    space: Space
    fixed: tuple[str, ...]
    arguments: Arguments

    @property
    def num_trials(self) -> int:
        """Return the number of trials."""
        asked = self.settings.num_trials
        if self.settings.sampler != "grid":
            return asked or 0
        return min(num_of_grid(self.space), asked or num_of_grid(self.space))

    def of_trial(self, words: Sequence[str]) -> Arguments:
        """Return the command line of one trial."""
        overrides = [*self.fixed, *words]
        options = [word for word in self.arguments.overrides if word.lstrip("+").startswith(OPTION)]
        return replace(
            self.arguments.of_trial(overrides),
            overrides=overrides,
            added=[*self.arguments.added, *options, "hydra/sweeper=basic"],
            is_sweep=False,
        )


def search_of(arguments: Arguments) -> SearchWords | None:
    """Return a command line's search, None without one."""
    if not arguments.is_sweep:
        return None
    values, params = sweep_nodes(arguments)
    if params is None:
        return None
    settings: SearchSettings = Node("sweep", values).checked().build()
    fixed = [word for word in single(arguments.overrides) if not word.lstrip("+~").startswith(OF_THE_SEARCH)]
    overrides = parsed_overrides(arguments.overrides, swept=params)
    space = {each.get_key_element(): _dimension(each) for each in overrides if each.is_sweep_override()}
    require_space(space, sampler=settings.sampler, words=arguments.overrides)
    if "seed" in space and settings.seeds > 1:
        raise ConfigurationError(
            f"seed={space['seed'].describe()} and sweep.seeds={settings.seeds} both choose seeds; leave one out."
        )
    return SearchWords(settings=settings, space=space, fixed=tuple(fixed), arguments=arguments)


def grid_settings(arguments: Arguments) -> tuple[SearchSettings, Arguments]:
    """Return how a grid's trials are started, and its command line without the words for that."""
    own = [word for word in arguments.overrides if word.lstrip("+").partition("=")[0].startswith(OF_A_GRID)]
    if not own or not arguments.is_sweep:
        return SearchSettings(), arguments
    kept = [word for word in arguments.overrides if word not in own]
    settings: SearchSettings = Node("sweep", sweep_nodes(arguments)[0]).checked().build()
    return settings, replace(arguments, overrides=kept)


def _dimension(override: Override) -> Dimension:
    key, value = override.get_key_element(), override.value()
    if isinstance(value, IntervalSweep):
        low, high = value.start, value.end
        assert low is not None, "Hydra's parser wants both"
        assert high is not None, "Hydra's parser wants both"
        step = 1 if isinstance(low, int) and isinstance(high, int) else None
        return interval(key, low, high, step=step, is_log="log" in value.tags)
    if isinstance(value, RangeSweep) and isinstance(value.step, int) and isinstance(value.start, int):
        return _whole_numbers(key, value)
    if isinstance(value, (ChoiceSweep, RangeSweep)):
        return ListedValues(values=tuple(override.sweep_string_iterator()))
    raise ConfigurationError(
        f"{override.input_line} is not a search space; valid are {key}=A,B, {key}=choice(A,B), "
        f"{key}=interval(LOW,HIGH), {key}=int(interval(LOW,HIGH)), {key}=range(START,STOP,STEP), and tag(log,...) "
        "around an interval."
    )


def _whole_numbers(key: str, value: RangeSweep) -> Interval:
    numbers = range(int(value.start or 0), math.ceil(value.stop or 0), int(value.step))
    if len(numbers) < 2:
        raise ConfigurationError(f"{key}=range({value.start},{value.stop},{value.step}) has fewer than two values.")
    low, high = min(numbers), max(numbers)
    return interval(key, low, high, step=abs(numbers.step), is_log="log" in value.tags)
