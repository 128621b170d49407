"""`lmtrain pipeline pipeline=NAME`: stages from text to a model to talk to, with one report card."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lmtrain.composition.execution.pipeline_run import EndedStage, done_stages, run_preflight, run_stages
from lmtrain.composition.execution.pipeline_stages import FLAGS, TRAIN, CommandPipeline, read_pipeline, require_files
from lmtrain.errors import EXIT_DONE, EXIT_NO, LMTRAIN_ERRORS, ConfigurationError
from lmtrain.report.report_card import Card, CardStage, PlannedStage, StageAccount, card_page, card_text, plan_text
from lmtrain.report.run_ledger import read_ledger
from lmtrain.tracking.atomic_files import read_json, write_json, write_text
from lmtrain.tracking.scores import tell_mlflow

CARD: Final = "card"  # .json has the scores of each run, .md and .html all of it
PREVIOUS: Final = "card.previous"

HELP = """usage: {program} [pipeline=NAME] [KEY=VALUE ...] [--plan] [--json]

Run a pipeline's stages one after the other. The same command goes on after a
stop, and skips what is done and unchanged.

  pipeline=speedrun_cpu  from nothing to a chat prompt, offline, on two cores
  pipeline=speedrun      nanochat's, on eight H100; speedrun_1x on one H200
  run.name=NAME          runs/NAME holds the stages
  STAGE.KEY=VALUE        of one training, as base.budget.tokens=1M
  each.KEY=VALUE         of every training, as each.trainer.devices=2
  --plan                 each training's time, dollars and disk; run nothing
  --json                 the report card, or the plan, as one JSON object"""


def pipeline(words: list[str], *, program: str = "lmtrain pipeline") -> int:
    """Run the stages, or with --plan plan them, and write the report card beside them.

    Raises:
        ConfigurationError: There is no such pipeline, or a stage is none.
    """
    if {"-h", "--help"} & set(words):
        print(HELP.format(program=program))
        return EXIT_DONE
    read = read_pipeline([word for word in words if word not in FLAGS])
    is_json = "--json" in words
    if "--plan" in words:
        return _plan(read, is_json=is_json)
    require_files(read)

    def tell(line: str) -> None:
        print(line, file=sys.stderr if is_json else sys.stdout, flush=True)

    before = done_stages(read)
    code = run_preflight(read, tell=tell) or run_stages(read, tell=tell)
    card = card_of(read, before)
    if problem := keep_card(read, card):
        print(problem, file=sys.stderr)
    if is_json:
        print(json.dumps({stage.name: {"seconds": stage.seconds, "scores": stage.scores} for stage in card.stages}))
    else:
        print(f"\n{card_text(card)}\nAs a page: {_near(read.folder / 'card.html')}")
    return code


def card_of(read: CommandPipeline, before: Mapping[str, EndedStage]) -> Card:
    """Return a pipeline's card as far as its stages have ended; `before` are those that had ended earlier."""
    done = done_stages(read)
    kept: dict[str, Any] = read_json(read.folder / f"{PREVIOUS if done == before else CARD}.json")
    stages = [
        CardStage(
            name=stage.name,
            command=" ".join(["lmtrain", *read.command(stage)]),
            seconds=done[stage.name].seconds if stage.name in done else None,
            run=stage.of or stage.name,
            scores=done[stage.name].scores if stage.name in done else {},
            was_done=stage.name in done and done[stage.name] == before.get(stage.name),
            account=_account(read.output(stage)) if stage.verb == TRAIN and stage.name in done else None,
        )
        for stage in read.stages
    ]
    return Card(name=read.name, stages=stages, previous=kept)


def keep_card(read: CommandPipeline, card: Card) -> str | None:
    """Write the card beside the stages, and into the last trained run and its run in MLflow.

    Return a line where MLflow could not be told.
    """
    if not all(stage.was_done for stage in card.stages if stage.seconds is not None):
        write_json(read.folder / f"{PREVIOUS}.json", card.previous)
    write_json(read.folder / f"{CARD}.json", {run: card.scores_of(run) for run in card.runs})
    trained = [stage for stage in card.stages if stage.account is not None]
    folders = [read.folder, *(read.folder / stage.name for stage in trained[-1:])]
    for folder in folders:
        write_text(folder / "card.md", card_text(card))
        write_text(folder / "card.html", card_page(card))
    return tell_mlflow(folders[-1]) if trained else None


def _account(run: Path) -> StageAccount | None:
    try:
        found = read_ledger(run)
    except ConfigurationError:  # it keeps none
        return None
    return StageAccount(tokens=found.tokens, goodput=found.time.goodput, usd=found.usd, kwh=found.kwh)


def _plan(read: CommandPipeline, *, is_json: bool) -> int:
    """Print the needs of the training stages, by their own plans; answer 1 where one cannot be."""
    from lmtrain.composition.planning.plan import planned_runs

    rows: list[PlannedStage] = []
    for stage in read.stages:
        if stage.verb != TRAIN:
            continue
        try:
            (run,) = planned_runs(read.planned_words(stage))
        except LMTRAIN_ERRORS as problem:
            rows.append(PlannedStage(name=stage.name, problem=str(problem)))
            continue
        kept = run.plan.checkpoints.kept_bytes if run.plan.checkpoints else None
        rows.append(
            PlannedStage(
                name=stage.name,
                tokens=run.plan.horizon.tokens,
                seconds=run.plan.seconds,
                usd=run.plan.usd,
                disk_bytes=kept,
                lacking=() if run.advice.is_possible else tuple(run.advice.lines),
            )
        )
    print(json.dumps([asdict(row) for row in rows]) if is_json else plan_text(read.name, rows))
    return EXIT_NO if any(row.problem or row.lacking for row in rows) else EXIT_DONE


def _near(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
