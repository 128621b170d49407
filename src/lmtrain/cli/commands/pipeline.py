"""`lmtrain pipeline pipeline=NAME`: stages from text to a model to talk to, with one report card."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.quantities import Unit, format_count, format_quantity
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError
from lmtrain.json_output import print_json
from lmtrain.report.ledger import RunLedger, read_ledger
from lmtrain.report.report_card import Card, CardStage, card_page, card_text
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.pipelines.plan import plan_pipeline, require_stages
from lmtrain.run.pipelines.run import EndedStage, done_stages, run_preflight, run_stages
from lmtrain.run.pipelines.stages import EVALUATE, EXPORT, TRAIN, CommandPipeline, read_pipeline, shows_config
from lmtrain.run.stored_runs.find_run import require_pipeline_folder
from lmtrain.tracking.atomic_files import file_lock, write_text
from lmtrain.tracking.run_folder import shown_path
from lmtrain.tracking.scores import tell_mlflow

LOCK: Final = ".lock"

HELP = """usage: {program} [pipeline=NAME] [KEY=VALUE ...] [--plan] [--json]

Run a pipeline's stages one after the other. The same command continues after a
stop, and skips what is done and unchanged.

  pipeline=speedrun_cpu  from nothing to a chat prompt, offline, on two cores
  pipeline=speedrun      nanochat's, on eight H100; speedrun_1x on one H200
  run.name=NAME          runs/NAME holds the stages
  STAGE.KEY=VALUE        of one training, as base.budget.tokens=1M
  each.KEY=VALUE         of every training, as each.trainer.devices=2
  --plan                 every training's time, dollars and disk; run nothing
  --cfg job              print the stages of the pipeline, and run nothing
  --json                 the report card, or the plan, as one JSON object"""


def pipeline(words: list[str], *, program: str = "lmtrain pipeline") -> int:
    """Run the stages, or with --plan plan them, and write the report card into their folder."""
    if {"-h", "--help"} & set(words):
        print(HELP.format(program=program))
        return EXIT_DONE
    parser = FlagParser(prog=program, allow_abbrev=False, add_help=False)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked, words = parser.taken(words)
    if shows_config(words):
        return EXIT_DONE
    read = read_pipeline(words)
    sys.stderr.write(f"{read.name}: checking {format_count(len(read.stages), 'stage')}; a new model is measured once\n")
    if asked.plan:
        return _plan(read, is_json=asked.json)
    require_pipeline_folder(read.folder)
    require_stages(read, _readers())
    read.folder.mkdir(parents=True, exist_ok=True)
    busy = f"{read.folder} is being run by process HOLDER; wait for it, or choose another run.name."
    with file_lock(read.folder / LOCK, refusal=busy):
        return _run(read, is_json=asked.json)


def _run(read: CommandPipeline, *, is_json: bool) -> int:
    """Run the stages, write the card and print it; return the exit code."""

    def tell(line: str) -> None:
        print(line, file=sys.stderr if is_json else sys.stdout, flush=True)

    before = done_stages(read)
    code = run_preflight(read, tell=tell) or run_stages(read, tell=tell)
    card = card_of(read, before)
    if problem := keep_card(read, card):
        print(problem, file=sys.stderr)
    if is_json:
        print_json({stage.name: _facts(stage) for stage in card.stages})
    else:
        print(f"\n{card_text(card)}\nAs a page: {shown_path(read.folder / 'card.html')}")
    return code


def card_of(read: CommandPipeline, before: Mapping[str, EndedStage]) -> Card:
    """Return the card of a pipeline's ended stages; `before` are those that had ended earlier."""
    done = done_stages(read)
    stages = [
        CardStage(
            name=stage.name,
            command=shlex.join(["lmtrain", *read.command(stage)]),
            seconds=done[stage.name].seconds if stage.name in done else None,
            run=stage.of or stage.name,
            scores=done[stage.name].scores if stage.name in done else {},
            was_done=stage.name in done and done[stage.name] == before.get(stage.name),
            account=_ledger(read.output(stage)) if stage.verb == TRAIN and stage.name in done else None,
        )
        for stage in read.stages
    ]
    return Card(name=read.name, stages=stages)


def keep_card(read: CommandPipeline, card: Card) -> str | None:
    """Write the card into the pipeline's folder, the last trained run and its run in MLflow.

    Return a line if MLflow could not be reached.
    """
    trained = [stage for stage in card.stages if stage.account is not None]
    folders = [read.folder, *(read.folder / stage.name for stage in trained[-1:])]
    for folder in folders:
        write_text(folder / "card.md", card_text(card))
        write_text(folder / "card.html", card_page(card))
    return tell_mlflow(folders[-1]) if trained else None


def _facts(stage: CardStage) -> dict[str, Any]:
    """Return a stage of the card, for a script."""
    facts = {"seconds": stage.shown_seconds, "was_done": stage.was_done, "scores": stage.scores}
    if (found := stage.account) is None:
        return facts
    return {**facts, "tokens": found.tokens, "goodput": found.time.goodput, "usd": found.usd}


def _ledger(run: Path) -> RunLedger | None:
    try:
        return read_ledger(run)
    except ConfigurationError:  # it keeps none
        return None


def _plan(read: CommandPipeline, *, is_json: bool) -> int:
    """Print a line for each stage, with a training's own plan; return 1 if one is impossible."""
    stages = plan_pipeline(read)
    together = {name: sum(stage[name] or 0 for stage in stages) for name in ("seconds", "usd", "kept_bytes")}
    is_possible = not any(stage["problem"] for stage in stages)
    if is_json:
        print_json({"pipeline": read.name, "stages": stages, "together": together, "ok": is_possible})
    else:
        for stage in [*stages, {"name": "all trainings", **together}]:
            print(_plan_line(stage))
        print("Each training's own plan has more: lmtrain plan. Evaluations and exports are not counted.")
    return EXIT_DONE if is_possible else EXIT_NO


def _plan_line(stage: Mapping[str, Any]) -> str:
    units: dict[str, Unit] = {"tokens": "count", "seconds": "seconds", "usd": "usd", "kept_bytes": "bytes"}
    figures = [
        format_quantity(stage[name], unit) + (" tokens" if name == "tokens" else "")
        for name, unit in units.items()
        if stage.get(name)
    ]
    words = "done" if stage.get("is_done") else ", ".join(figures) or stage.get("verb", "-")
    problem = f"\n  {stage['name']}: {stage['problem']}" if stage.get("problem") else ""
    return f"{stage['name']:<16}  {words}{problem}"


def _readers() -> dict[str, Callable[[Sequence[str]], object]]:
    """Return the parsers of the arguments of an evaluation and an export."""
    from lmtrain.cli.commands.evaluate_input import evaluation_parser, require_flags
    from lmtrain.cli.commands.export import require_flags as require_export_flags

    return {
        EVALUATE: lambda words: require_flags(evaluation_parser("lmtrain evaluate").parse_args([*words])),
        EXPORT: require_export_flags,
    }
