"""How many trials a search has: as many as asked for; with halving no more once its first round is over."""

from dataclasses import replace

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.search_words import SearchWords
from lmtrain.run.sweeps.book import is_first_round_over
from lmtrain.search.space import num_of_grid
from lmtrain.tracking.sweep_file import SweepFile


def num_trials(words: SearchWords, sweep: SweepFile) -> int:
    """Return the number of a search's trials; say where fewer than asked for were drawn, and no more will be."""
    asked, drawn = _num_asked(words), len(sweep.trials)
    if not is_first_round_over(sweep):
        return asked
    if drawn < asked:
        print(f"halving's first round is over: it had {drawn} of {asked} trials, and no more are drawn", flush=True)
    return drawn


def require_first_round(words: SearchWords, earlier: SweepFile) -> None:
    """Refuse more trials than at an earlier start of halving, its first round over: they would compete with none.

    Raises:
        ConfigurationError: There would be more.
    """
    settings = replace(words.settings, trials=earlier.settings.get("trials"))
    asked, before = _num_asked(words), _num_asked(replace(words, settings=settings))
    if asked > before and is_first_round_over(earlier):
        raise ConfigurationError(
            f"sweep.trials={asked} adds trials to sweep.pruner=halving after its first round, which had "
            f"{len(earlier.trials)}; nearest valid: sweep.trials={before} goes on, and another run.name searches anew."
        )


def _num_asked(words: SearchWords) -> int:
    asked = words.settings.num_trials
    if words.settings.sampler != "grid":
        return asked or 0
    return min(num_of_grid(words.space), asked or num_of_grid(words.space))
