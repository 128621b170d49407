"""A pipeline's stages are looked at before the first of them runs: a typing error would cost the hours before it."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeVar

from lmtrain.accounting.training_plan.stage_work import EvaluationWork
from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, retold
from lmtrain.run.pipelines.run import done_stages
from lmtrain.run.pipelines.stages import EVALUATE, TRAIN, CommandPipeline, PipelineStage
from lmtrain.run.pipelines.starts import require_same_start, stage_check
from lmtrain.run.run_config import RunConfig

T = TypeVar("T")
FILES: Final = ("--core", "--text", "--answers", "--data")  # flags of an evaluation before a path


@dataclass(frozen=True, kw_only=True)
class StageReaders:
    """Readers of the words of stages that do not train: an evaluation's work, an export's bytes of a value."""

    evaluation: Callable[[Sequence[str]], EvaluationWork]
    export: Callable[[Sequence[str]], int | None]


def require_files(pipeline: CommandPipeline) -> None:
    """Refuse an evaluation of missing files, before the training to score.

    Raises:
        ConfigurationError: The first one.
    """
    for stage in pipeline.stages:
        if stage.verb != EVALUATE:
            continue
        for flag, path in pairwise(stage.words):
            if flag in FILES and not Path(path).exists():
                key = f"pipeline.stages.{stage.name}.words"
                raise ConfigurationError(f"{key}: {flag} {path} does not exist; correct it, or {key}=[...] without it.")


def require_stages(pipeline: CommandPipeline, readers: StageReaders) -> None:
    """Refuse an impossible stage, before the earlier ones run; finished ones are not looked at.

    Raises:
        ConfigurationError: The first one, in the words of its own command's refusal.
    """
    done = done_stages(pipeline)
    configs: dict[str, RunConfig] = {}
    for stage in pipeline.stages:
        if stage.name in done:
            continue
        if stage.verb == TRAIN:
            _named(stage, lambda stage=stage: _planned(pipeline, stage, configs))
        else:
            read: Callable[[Sequence[str]], object]
            read = readers.evaluation if stage.verb == EVALUATE else readers.export
            _named(stage, partial(read, pipeline.command(stage)[1:]))


def require_rehearsals(pipeline: CommandPipeline) -> None:
    """Refuse a training of parts unfit for this machine; torch is imported in another process alone.

    Raises:
        ConfigurationError: The first one.
        EnvironmentProblem: This machine lacks something.
    """
    done = done_stages(pipeline)
    if any(stage.verb == TRAIN and stage.name not in done for stage in pipeline.stages):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
            apart.submit(rehearse_trainings, pipeline, [*done]).result()


def rehearse_trainings(pipeline: CommandPipeline, done: Sequence[str]) -> None:
    """Build the parts of each training but of those done, and discard them."""
    for stage in pipeline.stages:
        if stage.verb == TRAIN and stage.name not in done:
            _named(stage, lambda stage=stage: _first_way(pipeline, stage, partial(_rehearse, pipeline, stage)))


def _planned(pipeline: CommandPipeline, stage: PipelineStage, configs: dict[str, RunConfig]) -> RunConfig:
    """Return a training's config by its words, beside that of its base; each is planned once, into `configs`."""
    from lmtrain.run.planning.plan import planned_runs

    if stage.name in configs:
        return configs[stage.name]
    base = _planned(pipeline, pipeline.stage(stage.of), configs) if stage.of else None

    def plan(words: list[str]) -> RunConfig:
        config = planned_runs([*words, *pipeline.flags], more_checks=stage_check(pipeline, stage))[0].config
        if base is not None:
            require_same_start(pipeline, stage, config, base=base)
        return config

    configs[stage.name] = _first_way(pipeline, stage, plan)
    return configs[stage.name]


def _rehearse(pipeline: CommandPipeline, stage: PipelineStage, words: Sequence[str]) -> None:
    from lmtrain.run.compose.arguments import parse_arguments
    from lmtrain.run.compose.compose import Choices, for_each_config
    from lmtrain.run.gate import check
    from lmtrain.run.planning.auto_strategy import with_strategy
    from lmtrain.run.stored_runs.job import Job
    from lmtrain.run.validators.ranks import require_launcher

    arguments = parse_arguments([*words, *pipeline.flags])

    def rehearsed(composed: Mapping[str, Any], choices: Choices) -> None:
        from lmtrain.run.execution.meta_build import build_on_meta  # torch

        values = {**composed, "init_from": str(pipeline.folder / stage.of) if stage.of else None}
        typed = [word for word in choices.overrides if word not in arguments.not_typed]
        config = check(values, allowed=arguments.allowed_targets, typed=typed)
        require_launcher(config.trainer, is_launched=False)
        config, _ = with_strategy(config)
        name = str(Path(pipeline.name, stage.name))
        build_on_meta(Job(config=config, overrides=typed, name=name, root=str(pipeline.root)), is_alone=False)

    for_each_config(rehearsed, arguments, config_name="train")


def _first_way(pipeline: CommandPipeline, stage: PipelineStage, plan: Callable[[list[str]], T]) -> T:
    """Return the outcome of the first way to plan a training that is not refused."""
    first, second = pipeline.ways_to_plan(stage)
    try:
        return plan(first)
    except LMTRAIN_ERRORS:
        return plan(second)


def _named(stage: PipelineStage, look: Callable[[], object]) -> None:
    """Raise a stage's error with its name."""
    try:
        look()
    except LMTRAIN_ERRORS as refused:
        raise retold(refused, f"stage {stage.name}: {refused}") from refused
