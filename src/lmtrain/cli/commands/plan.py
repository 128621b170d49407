"""`lmtrain plan`: a training config's memory, time and cost, from the very config of the training."""

import textwrap
from pathlib import Path
from typing import Any, Final

from lmtrain.cli.fleet_terms import FLEET_TERMS, is_fleet
from lmtrain.cli.help import run_parser
from lmtrain.errors import EXIT_DONE, EXIT_NO
from lmtrain.json_output import print_json
from lmtrain.run.compose.arguments import values_by_key
from lmtrain.run.compose.start_options import class_words
from lmtrain.run.planning.plan import planned_runs
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.task import require_parts_of_task
from lmtrain.training.lean_import import collecting_later

END: Final = f"""\
lmtrain plan model=llama_3_8b cluster=h100_8x strategy=fsdp \\
    budget.tokens=160B batch.context_tokens=8192 batch.tokens_per_step=1048576

fleet.TERM=VALUE, with model=, cluster= and precision= alone, plans a fleet: the
terms that are left out are computed. TERM is one of
{textwrap.fill(", ".join(FLEET_TERMS), 80)}.

Ends with 1 where the run does not fit its devices or its budget; the last lines
then name the nearest change that does."""


def plan(words: list[str], *, program: str = "lmtrain plan") -> int:
    """Print the plan of a config, and answer 1 where it does not fit its devices or its budget; `--web` is a page."""
    parser = run_parser("plan", program, end=END)
    parser.add_argument("--hf", metavar="PATH", help="the model of a folder of transformers, or of a config.json")
    parser.add_argument("--web", action="store_true", help="a page of sliders and plots, on this machine only")
    parser.add_argument("--port", type=int, help="of that page")
    asked, words = parser.taken(words)
    if asked.hf:
        words = [*class_words(asked.hf, values_by_key(words)), *words]
    if asked.web:
        from lmtrain.cli.commands.plan_web import serve

        return serve(words, port=asked.port)
    if is_fleet(words):
        from lmtrain.cli.commands.fleet import plan_fleet

        return plan_fleet(words, as_json=asked.json)
    with collecting_later(freezes=True):  # looking for garbage, also once at the end, is a tenth of its time
        found = planned_runs(words, more_checks=_require_start)
        if asked.json:
            for run in found:
                print_json(run.to_json())
        else:
            from lmtrain.report.plans.plan_page import page  # brings rich, a tenth of a plan's time
            from lmtrain.report.show import show

            for run in found:
                show(page(run.plan, run.advice, title=run.headline))
    return max((EXIT_DONE if run.advice.is_possible else EXIT_NO for run in found), default=EXIT_DONE)


def plan_json(words: list[str]) -> list[dict[str, Any]]:
    """Return the objects that `lmtrain plan WORDS --json` prints, one per config of a sweep."""
    if is_fleet(words):
        from lmtrain.cli.commands.fleet import fleet_of

        return [fleet_of(words).to_json()]
    return [run.to_json() for run in planned_runs(words, more_checks=_require_start)]


def _require_start(config: RunConfig) -> None:
    """Refuse a wrong `init_from`, a `resume` that does not exist, and parts unfit for the task."""
    if config.resume != "auto":
        from lmtrain.run.stored_runs.resume import require_place  # of a few plans alone

        require_place(config.resume)
    for key, path in (("init_from", config.init_from), ("teacher", config.teacher)):
        if path:
            from lmtrain.run.stored_runs.find_run import require_source  # of a few plans alone

            require_source(Path(path), key=key)
    require_parts_of_task(config)
