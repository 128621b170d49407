"""`lmtrain bench --ladder OVERRIDES`: the published optimisations one after another, each with all before it."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.report.tuning.ladder_page import RungSpeed, ladder_lines, write_ladder
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.compose.paths import key_of
from lmtrain.run.execution.tried_run import TriedRun, checked_config, kept, try_run
from lmtrain.storage import foreign_json

RUNGS: Final = Path(__file__).with_name("ladder.json")
CALLBACKS: Final = ("step_log", "throughput", "token_budget")
DEVICES: Final = "trainer.devices"
LEAST_STEPS: Final = 3


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A step of the ladder, and all its words: those before it too."""

    name: str
    words: tuple[str, ...]


def bench_ladder(words: Sequence[str], *, program: str) -> int:
    """Train some steps on each rung, print tokens/s and MFU, and write one plot of all.

    Raises:
        ConfigurationError: The config or a flag is wrong.
    """
    parser = FlagParser(prog=f"{program} --ladder", allow_abbrev=False, add_help=False)
    parser.add_argument("--ladder", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked, others = parser.taken(words)
    if asked.steps < LEAST_STEPS:
        raise ConfigurationError(f"--steps={asked.steps} times no step after the first; nearest valid: {LEAST_STEPS}.")
    config = checked_config(others)
    typed = kept(others)
    found = [_climbed(rung, typed, num_steps=asked.steps) for rung in rungs(typed)]
    plot = write_ladder(found, folder=Path(config.run.root) / ".tune", words=typed)
    if asked.json:
        print(json.dumps({"rungs": [asdict(one) for one in found], "plot": str(plot)}))
    else:
        print("\n".join(ladder_lines(found, plot=plot)))
    return EXIT_DONE


def rungs(typed: Sequence[str], *, file: Path = RUNGS) -> list[Rung]:
    """Return the ladder's rungs; the last one has the ranks typed, the others one, and two stand for none typed."""
    keys = [key_of(word) for word in typed]
    ranks = typed[keys.index(DEVICES)] if DEVICES in keys else f"{DEVICES}=2"
    rows = foreign_json.read(file)
    found: list[Rung] = []
    words: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        words |= {key_of(word): word for word in row["words"]}
        if number == len(rows):
            words[DEVICES] = ranks
        found.append(Rung(name=row["rung"], words=tuple(words.values())))
    return found


def _climbed(rung: Rung, typed: Sequence[str], *, num_steps: int, run: Callable[..., TriedRun] = try_run) -> RungSpeed:
    print(f"bench: {rung.name}: {' '.join(rung.words)}…", file=sys.stderr, flush=True)
    own = {key_of(word) for word in rung.words}
    others = [word for word in typed if key_of(word) not in own]
    tried = run([*others, *rung.words], num_steps=num_steps, callbacks=CALLBACKS)
    speeds = sorted(value for _, value in tried.curve("speed/tokens_per_second"))
    mfus = sorted(value for _, value in tried.curve("speed/mfu_palm"))
    problem = (
        None if tried.exit_code == EXIT_DONE and speeds else tried.words.splitlines()[-1:] or ["no step was timed"]
    )
    return RungSpeed(
        rung=rung.name,
        words=" ".join(rung.words),
        tokens_per_second=speeds[len(speeds) // 2] if speeds and not problem else None,
        mfu=mfus[len(mfus) // 2] if mfus and not problem else None,
        problem=problem[0] if problem else None,
    )
