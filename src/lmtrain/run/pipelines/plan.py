"""Plan a pipeline's trainings before the first one runs: a typing error would cost the hours before it.

The run that a later training starts from does not exist yet: its base's arguments stand for it. The preflight and the
trainings themselves compare weights, tokenizers and devices.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, retold
from lmtrain.run.pipelines.run import done_stages
from lmtrain.run.pipelines.stages import TRAIN, CommandPipeline, PipelineStage
from lmtrain.run.planning.plan import PlannedRun, planned_runs
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.task import require_conversations, require_parts_of_task

FILES: Final = ("--core", "--text", "--answers", "--data")  # flags of an evaluation that take a path
ReadWords = Callable[[Sequence[str]], object]


def require_stages(pipeline: CommandPipeline, readers: Mapping[str, ReadWords]) -> None:
    """Refuse an impossible stage before the earlier ones run; finished ones are skipped.

    `readers` read the arguments of an evaluation and of an export.
    """
    done = done_stages(pipeline)
    for stage in pipeline.stages:
        if stage.name in done:
            continue
        try:
            if stage.verb == TRAIN:
                planned_training(pipeline, stage, done=done)
            else:
                for flag, path in pairwise(stage.words):
                    if flag in FILES and not Path(path).exists():
                        raise ConfigurationError(f"pipeline.stages.{stage.name}.words: {flag} {path} does not exist.")
                readers[stage.verb](pipeline.command(stage)[1:])
        except LMTRAIN_ERRORS as refused:
            raise retold(refused, f"stage {stage.name}: {refused}") from refused


def plan_pipeline(pipeline: CommandPipeline) -> list[dict[str, Any]]:
    """Return a row of plain values for each stage: a training's time, dollars, tokens and kept bytes, or its problem.

    Evaluations and exports have none of these figures; a stage that is done needs nothing more.
    """
    done = done_stages(pipeline)
    rows: list[dict[str, Any]] = []
    for stage in pipeline.stages:
        row: dict[str, Any] = {"name": stage.name, "verb": stage.verb, "is_done": stage.name in done}
        row |= {"seconds": None, "usd": None, "tokens": None, "kept_bytes": None, "problem": ""}
        if stage.verb == TRAIN and stage.name not in done:
            try:
                row |= _figures(planned_training(pipeline, stage, done=done))
            except LMTRAIN_ERRORS as problem:
                row["problem"] = str(problem)
        rows.append(row)
    return rows


def planned_training(pipeline: CommandPipeline, stage: PipelineStage, *, done: Collection[str]) -> PlannedRun:
    """Return a training's plan; the stages in `done` have runs."""
    words = pipeline.planned_words(stage, done=done)
    (found,) = planned_runs([*words, *pipeline.flags], more_checks=_require_rows)
    return found


def _require_rows(config: RunConfig) -> None:
    require_conversations(config)
    require_parts_of_task(config)


def _figures(run: PlannedRun) -> dict[str, Any]:
    plan = run.plan
    return {
        "seconds": plan.seconds,
        "usd": plan.usd,
        "tokens": plan.horizon.tokens if plan.knows_its_end else None,
        "kept_bytes": plan.checkpoints.kept_bytes if plan.checkpoints else None,
        "problem": "" if run.advice.is_possible else "\n".join(run.advice.lines),
    }
