"""`lmtrain parity OVERRIDES`: a config's strategy on CPU ranks compared with one process, tensor by tensor.

Both take the config's first steps on the same data; the page names the first difference: step, tensor and ranks.
`parity.draws=N` compares N random strategies and batches instead, and makes each failure as small as it stays one.
"""

import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.parity_checks import Parity
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.cli.help import run_parser
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError, EnvironmentProblem, suggest
from lmtrain.json_output import print_json
from lmtrain.launch.detect import outer_launcher
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.paths import key_of, without
from lmtrain.run.stored_runs.job import Job

Words = tuple[str, ...]  # of a draw
DEFAULTS: Final = {"ranks": 2, "steps": 3, "tolerance": 1e-4, "draws": 0, "seed": 0}
LEAST: Final = {"ranks": 2, "steps": 1, "draws": 0, "seed": 0}
REPLACED: Final = ("budget", "schedule", "precision", "resume", "logger", "run.root", "run.name", "trainer")
WORDS: Final = (
    *("precision=fp32", "schedule=constant", "budget=steps", "resume=never", "logger=none", "run.name=parity"),
    "trainer.accelerator=cpu",
)
CHANGED: Final = ("on CPU over gloo", "precision=fp32", "schedule=constant", "callbacks none")

END: Final = """\
parity.ranks=2 CPU processes over gloo take the devices' place, for
parity.steps=3 optimizer steps in fp32 at a constant learning rate.
parity.tolerance=1e-4 is of a loss and of a tensor's largest gradient; a hundred
times as much of its largest update. The page lists all that it changes, and
names the first difference; then it ends with 1. It keeps nothing.

parity.draws=20 compares random strategies, batches and recomputations of the
config instead, from parity.seed=0 on, and makes a failure as small as it stays
one."""


def parity(words: list[str], *, program: str = "lmtrain parity") -> int:
    """Compare a config on ranks with one process; answer 1 where they differ."""
    asked, words = run_parser("parity", program, end=END).taken(words)
    settings = read_settings(words)
    outer = outer_launcher(os.environ)
    if outer is not None and outer.world_size > 1:
        raise ConfigurationError(
            f"parity starts its own ranks; run it once, outside of {outer.kind}, with parity.ranks=N."
        )
    typed = [word for word in words if not word.startswith("parity.")]
    if settings["draws"] and parse_arguments(typed).is_sweep:
        raise ConfigurationError(
            f"parity.draws: must be 0 with -m, got {settings['draws']:g}. Run each config by itself."
        )
    with tempfile.TemporaryDirectory(prefix="lmtrain-parity-") as root:
        comparison = RankComparison(typed, settings, root=Path(root))
        drawn = comparison.hunt() if settings["draws"] else (((), one) for one in comparison.of([()]))
        return _shown(drawn, settings, as_json=asked.json)


def _shown(drawn: Iterable[tuple[Words, Parity]], settings: dict[str, float], *, as_json: bool) -> int:
    """Print each result as it comes: a page of a config, a line of a draw."""
    from lmtrain.report.parity_page import line, page
    from lmtrain.report.show import show

    failed = 0
    for words, found in drawn:
        failed += not found.is_equal
        if as_json:
            print_json(found.to_json() | ({"words": [*words]} if words else {}))
        elif words:
            print(line(words, found), flush=True)
        else:
            show(page(found))
    if settings["draws"] and not as_json:
        print(
            f"{settings['draws']:g} draws on {settings['ranks']:g} ranks: {failed or 'none'} differ from one process."
        )
    return EXIT_NO if failed else EXIT_DONE


def read_settings(words: list[str]) -> dict[str, float]:
    """Return the command's settings, `parity.KEY=NUMBER`, by their keys."""
    settings: dict[str, float] = dict(DEFAULTS)
    for word in words:
        key, _, value = word.partition("=")
        if not key.startswith("parity."):
            continue
        name = key.removeprefix("parity.")
        if name not in DEFAULTS:
            raise ConfigurationError(f"{key} is not a setting of lmtrain parity.{suggest(name, DEFAULTS)}")
        number = float(parse_quantity(value, key))
        if name in LEAST and (number < LEAST[name] or not number.is_integer()):
            raise ConfigurationError(f"{key} must be a whole number of at least {LEAST[name]}, got {value}.")
        if name not in LEAST and not 0 < number < 1:
            raise ConfigurationError(f"{key} must be between 0 and 1, got {value}; {DEFAULTS[name]:g} is usual.")
        settings[name] = number
    return settings


class RankComparison:
    """Configs of one command line, with further words or without, compared on ranks with one process."""

    def __init__(self, typed: list[str], settings: dict[str, float], *, root: Path) -> None:
        fixed = [f"budget.steps={settings['steps']:g}", f"trainer.devices={settings['ranks']:g}", "trainer.num_nodes=1"]
        self._compiles = (
            [] if any(key_of(word) == "compile" for word in typed) else ["compile=none"]
        )  # it takes a minute
        self._typed, self._fixed = typed, [*WORDS, *fixed, *self._compiles]
        self._settings, self._root, self._number = settings, root, 0

    def hunt(self) -> Iterator[tuple[Words, Parity]]:
        """Compare random draws, the failing ones as small as they still fail."""
        from lmtrain.run.execution.parity_hunt import accepted, hunt

        random_numbers, num_ranks = random.Random(int(self._settings["seed"])), int(self._settings["ranks"])
        number = int(self._settings["draws"])
        drawn = [accepted(random_numbers, self._prepared, num_ranks=num_ranks) for _ in range(number)]
        return hunt(drawn, self.of)

    def of(self, drawn: Sequence[Words]) -> list[Parity]:
        """Compare the config, or each of a sweep, with each of some further words."""
        from lmtrain.run.execution.parity_run import compare

        prepared = [one for words in drawn for one in self._prepared(words)]
        num_steps, tolerance = int(self._settings["steps"]), self._settings["tolerance"]
        if len(drawn) > 1 and any(alone.handed_over() for _, (alone, _) in prepared):
            return [one for words in drawn for one in self.of([words])]
        try:
            found = compare([jobs for _, jobs in prepared], num_steps=num_steps, tolerance=tolerance)
        except EnvironmentProblem as failed:
            if len(drawn) > 1:
                return [one for words in drawn for one in self.of([words])]
            if not drawn[0]:
                raise
            return [replace(one, failure=str(failed)) for one, _ in prepared]
        return [replace(one, differences=differences) for (one, _), differences in zip(prepared, found, strict=True)]

    def _prepared(self, words: Words) -> list[tuple[Parity, tuple[Job, Job]]]:
        """Check a config and its one process, and prepare its data."""
        from lmtrain.run.execution.meta_build import build_on_meta
        from lmtrain.run.execution.start import prepare_data
        from lmtrain.run.gate import checked_configs
        from lmtrain.run.planning.parity_configs import pair_of

        arguments = parse_arguments([*without([*self._typed, *words], REPLACED), *self._fixed])
        prepared: list[tuple[Parity, tuple[Job, Job]]] = []
        for config, choices in checked_configs(arguments):
            pair = pair_of(config.checked(), num_steps=int(self._settings["steps"]))
            self._number += 1
            root, overrides = str(self._root / str(self._number)), choices.overrides
            alone, together = (
                build_on_meta(Job(config=one, overrides=overrides, name=name, root=root), is_alone=False)
                for name, one in (("alone", pair.alone), ("together", pair.together))
            )
            prepare_data(alone)
            result = Parity(
                strategy=config.strategy.word,
                num_ranks=config.num_ranks,
                num_steps=int(self._settings["steps"]),
                tolerance=self._settings["tolerance"],
                differences=(),
                changed=(*CHANGED, *self._compiles, *pair.changed),
            )
            prepared.append((result, (alone, together)))
        return prepared
