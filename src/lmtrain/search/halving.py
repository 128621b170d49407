"""Successive halving: all trials train a little, and the better part of them continues; arXiv:1502.07943.

A round ends at one of the run's validations. With 4 of them and a factor of 2, rounds end after the first, the second
and the fourth: a quarter, a half and all of the run's steps.
"""

from collections.abc import Mapping, Sequence

from lmtrain.errors import ConfigurationError


def round_ends(num_passes: int, *, factor: int) -> list[int]:
    """Return after which validation, counted from 1, each round ends; the last one is the run's end.

    Raises:
        ConfigurationError: There are too few validations for two rounds.
    """
    found = [num_passes]
    while found[0] % factor == 0:
        found.insert(0, found[0] // factor)
    if len(found) == 1:
        raise ConfigurationError(
            f"callbacks.validation.num_passes: must be a multiple of sweep.halving_factor={factor} for "
            f"sweep.pruner=halving, got {num_passes}; for example {factor**2}."
        )
    return found


def step_of_part(part: tuple[int, int] | None, *, num_steps: int) -> int | None:
    """Return the step after which k of n equal parts of a run are done, that of a validation; None for None."""
    return None if part is None else -(-part[0] * num_steps // part[1])


def whole_runs(num_trials: int, ends: Sequence[int], *, factor: int) -> float:
    """Return the work of a search in whole trials: each round trains the better part of the last."""
    work, before, left = 0.0, 0, num_trials
    for end in ends:
        work += left * (end - before) / ends[-1]
        before, left = end, max(1, left // factor)
    return work


def promoted(scores: Mapping[int, float], *, factor: int) -> Sequence[int]:
    """Return the trials of the next round: the best one in `factor`, at least one."""
    best_first = sorted(scores, key=lambda number: (scores[number], number))
    return best_first[: max(1, len(best_first) // factor)]
