"""Random trainings of a config on ranks, each compared with one process; a failure is made as small as it stays one.

A draw is a strategy with its sizes and switches, a batch and its division, and a kind of recomputation. Draws that the
gate or the build of the model refuses are drawn again.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, get_args

from lmtrain.accounting.model.memory import Schedule
from lmtrain.accounting.observed.parity_checks import Parity
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import file_values, words_of
from lmtrain.run.compose.paths import key_of

MOST_REFUSED: Final = 300  # draws in a row
TOGETHER: Final = 20  # comparisons in one start of the processes, which takes longer than any of them
VALUES: Final[Mapping[str, Sequence[str]]] = {
    "batch.context_tokens": ("32", "64", "128"),
    "batch.micro_batch_sequences": ("1", "2", "3"),
    "recompute": ("none", "every_block", "selective"),
}
SETTINGS: Final[Mapping[str, Sequence[str]]] = {
    "schedule": get_args(Schedule),
    "num_chunks": ("1", "2"),
}
SIZE: Final = "_size"  # the end of the names of settings that divide the ranks
SIMPLER: Final = ("model.num_layers=2", "model.num_layers=1", "recompute=none", "batch.micro_batch_sequences=1")
Words = tuple[str, ...]  # of a command line
Compare = Callable[[Sequence[Words]], Sequence[Parity]]


def draw(random_numbers: random.Random, *, num_ranks: int) -> Words:
    """Draw a strategy, a batch and its division, as words of the command line; one with more settings more often."""
    choose = random_numbers.choice
    strategies = words_of(ModelSpread, lambda one: one.can_be_chosen)
    settings = [file_values(strategy) for strategy in strategies]
    number = choose([number for number, own in enumerate(settings) for _ in own])
    words, left = [strategies[number]], num_ranks
    for name, usual in random_numbers.sample([*settings[number].items()], len(settings[number])):
        if name.endswith(SIZE):
            size = choose([size for size in range(1, left + 1) if left % size == 0])
            left //= size
            words.append(f"strategy.{name}={size}")
        elif isinstance(usual, bool):
            words.append(f"strategy.{name}={choose(('true', 'false'))}")
        elif name in SETTINGS:
            words.append(f"strategy.{name}={choose(SETTINGS[name])}")
    drawn = {key: choose(values) for key, values in VALUES.items()}
    sequences = num_ranks * int(drawn["batch.micro_batch_sequences"]) * choose((1, 2, 4, 8))
    tokens = sequences * int(drawn["batch.context_tokens"])
    return (*words, *(f"{key}={value}" for key, value in drawn.items()), f"batch.tokens_per_step={tokens}")


def accepted(random_numbers: random.Random, accepts: Callable[[Words], object], *, num_ranks: int) -> Words:
    """Draw until a draw is accepted; many refusals in a row end with the last one."""
    num_refused = 0
    while True:
        words = draw(random_numbers, num_ranks=num_ranks)
        try:
            accepts(words)
        except ConfigurationError:
            num_refused += 1
            if num_refused == MOST_REFUSED:
                raise
        else:
            return words


def hunt(drawn: Sequence[Words], compare: Compare) -> Iterator[tuple[Words, Parity]]:
    """Compare draws; yield each with its result, a failing one as the smallest that fails."""
    for first in range(0, len(drawn), TOGETHER):
        some = drawn[first : first + TOGETHER]
        for words, found in zip(some, compare(some), strict=True):
            yield (words, found) if found.is_equal else smallest(words, found, compare)


def smallest(words: Words, found: Parity, compare: Compare) -> tuple[Words, Parity]:
    """Return a failing draw with each simpler word, and without each word, that leave it failing."""
    changes: list[tuple[str, str]] = [(word, key_of(word)) for word in SIMPLER]
    changes += [("", key_of(word)) for word in words[1:]]
    for word, key in changes:
        candidate = tuple(one for one in words if key_of(one) != key) + ((word,) if word else ())
        try:
            (result,) = compare([candidate])
        except ConfigurationError:
            continue
        if not result.is_equal:
            words, found = candidate, result
    return words, found
