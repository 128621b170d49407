"""`lmtrain parity OVERRIDES`: a config's strategy on CPU ranks compared with one process, tensor by tensor.

Both take the config's first steps on the same data; the page names the first difference: step, tensor and ranks.
`--draws N` compares N random strategies and batches instead, and makes each failure as small as it stays one.
"""

import argparse
import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.parity_checks import Parity
from lmtrain.accounting.options.ranges import require_number
from lmtrain.cli.help import run_parser
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError, EnvironmentProblem
from lmtrain.json_output import print_json
from lmtrain.launch.detect import outer_launcher
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.compose.paths import key_of, without
from lmtrain.run.stored_runs.job import Job

Words = tuple[str, ...]  # of a draw
LEAST: Final = {"ranks": 2, "steps": 1, "draws": 0, "seed": 0}
REPLACED: Final = ("budget", "schedule", "precision", "resume", "logger", "run.root", "run.name", "trainer")
WORDS: Final = (
    *("precision=fp32", "schedule=constant", "budget=steps", "resume=never", "logger=none", "run.name=parity"),
    "trainer.accelerator=cpu",
)
CHANGED: Final = ("on CPU over gloo", "precision=fp32", "schedule=constant", "callbacks none")

END: Final = """\
CPU processes over gloo take the devices' place, in fp32 at a constant learning
rate. The tolerance is of a loss and of a tensor's largest gradient; a hundred
times as much of its largest update. The page lists all that it changes, and
names the first difference; then it ends with 1. It keeps nothing.

--draws 20 compares random strategies, batches and recomputations of the config
instead, and makes a failure as small as it stays one."""


def parity(words: list[str], *, program: str = "lmtrain parity") -> int:
    """Compare a config on ranks with one process; answer 1 where they differ."""
    asked, typed = _parser(program).taken(words)
    for name, least in LEAST.items():
        require_number(f"--{name}", getattr(asked, name), at_least=least, usual=str(max(least, 1)))
    require_number("--tolerance", asked.tolerance, above=0, below=1, usual="1e-4")
    outer = outer_launcher(os.environ)
    if outer is not None and outer.world_size > 1:
        raise ConfigurationError("parity starts its own ranks; run it once, without torchrun or srun, with --ranks N.")
    if asked.draws and parse_arguments(typed).is_sweep:
        raise ConfigurationError(f"--draws: must be 0 with -m, got {asked.draws}. Run each config by itself.")
    with tempfile.TemporaryDirectory(prefix="lmtrain-parity-") as root:
        comparison = RankComparison(typed, asked, root=Path(root))
        drawn = comparison.hunt() if asked.draws else (((), one) for one in comparison.of([()]))
        return _shown(drawn, asked)


def _parser(program: str) -> FlagParser:
    parser = run_parser("parity", program, end=END)
    add = parser.add_argument
    add("--ranks", type=int, default=2, metavar="N", help="processes (2)")
    add("--steps", type=int, default=3, metavar="N", help="optimizer steps (3)")
    add("--tolerance", type=float, default=1e-4, metavar="SHARE", help="relative, above 0 and below 1 (1e-4)")
    add("--draws", type=int, default=0, metavar="N", help="random configs to compare instead (0: this one)")
    add("--seed", type=int, default=0, metavar="N", help="of the draws (0)")
    return parser


def _shown(drawn: Iterable[tuple[Words, Parity]], asked: argparse.Namespace) -> int:
    """Print each result as it comes: a page of a config, a line of a draw."""
    from lmtrain.report.parity_page import line, page
    from lmtrain.report.show import show

    failed = 0
    for words, found in drawn:
        failed += not found.is_equal
        if asked.json:
            print_json(found.to_json() | ({"words": [*words]} if words else {}))
        elif words:
            print(line(words, found), flush=True)
        else:
            show(page(found))
    if asked.draws and not asked.json:
        print(f"{asked.draws} draws on {asked.ranks} ranks: {failed or 'none'} differ from one process.")
    return EXIT_NO if failed else EXIT_DONE


class RankComparison:
    """Configs of one command line, with further words or without, compared on ranks with one process."""

    def __init__(self, typed: list[str], asked: argparse.Namespace, *, root: Path) -> None:
        fixed = [f"budget.steps={asked.steps}", f"trainer.devices={asked.ranks}", "trainer.num_nodes=1"]
        self._compiles = (
            [] if any(key_of(word) == "compile" for word in typed) else ["compile=none"]
        )  # it takes a minute
        self._typed, self._fixed = typed, [*WORDS, *fixed, *self._compiles]
        self._asked, self._root, self._number = asked, root, 0

    def hunt(self) -> Iterator[tuple[Words, Parity]]:
        """Compare random draws, the failing ones as small as they still fail."""
        from lmtrain.run.execution.parity_hunt import accepted, hunt

        random_numbers, num_ranks = random.Random(self._asked.seed), self._asked.ranks
        drawn = [accepted(random_numbers, self.prepared, num_ranks=num_ranks) for _ in range(self._asked.draws)]
        return hunt(drawn, self.of)

    def of(self, drawn: Sequence[Words]) -> list[Parity]:
        """Compare the config, or each of a sweep, with each of some further words."""
        from lmtrain.run.execution.parity_run import compare

        prepared = [one for words in drawn for one in self.prepared(words)]
        num_steps, tolerance = self._asked.steps, self._asked.tolerance
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

    def prepared(self, words: Words) -> list[tuple[Parity, tuple[Job, Job]]]:
        """Check a config and its one process, and prepare its data."""
        from lmtrain.run.execution.meta_build import build_on_meta
        from lmtrain.run.execution.start import prepare_data
        from lmtrain.run.gate import checked_configs
        from lmtrain.run.planning.parity_configs import pair_of

        arguments = parse_arguments([*without([*self._typed, *words], REPLACED), *self._fixed])
        prepared: list[tuple[Parity, tuple[Job, Job]]] = []
        for config, choices in checked_configs(arguments):
            pair = pair_of(config.checked(), num_steps=self._asked.steps)
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
                num_steps=self._asked.steps,
                tolerance=self._asked.tolerance,
                differences=(),
                changed=(*CHANGED, *self._compiles, *pair.changed),
            )
            prepared.append((result, (alone, together)))
        return prepared
