"""Check and plan a pipeline's stages before the first one runs: a typing error would cost the hours before it.

The run that a later training starts from does not exist yet, so its config is compared with that of its base.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeVar

from lmtrain.accounting.training_plan.stages import EvaluationWork, PipelinePlan, StagePlan, done_stage
from lmtrain.doctor.disk import nearest_folder
from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, retold
from lmtrain.run.compose.paths import key_of
from lmtrain.run.pipelines.run import EndedStage, done_stages, has_preflight_ahead
from lmtrain.run.pipelines.stages import (
    EVALUATE,
    EXPERIMENT,
    MODEL,
    PREFLIGHT,
    TOKENIZER,
    TRAIN,
    CommandPipeline,
    PipelineStage,
)
from lmtrain.run.planning.stage_plans import PlannedTraining, evaluated, exported, planned_training
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.signatures import gives_nothing
from lmtrain.run.stored_runs.model_difference import model_fix, size_difference
from lmtrain.run.validators.task import require_chat_tokens, require_conversations, require_objective

T = TypeVar("T")
PREPARE: Final = "prepare"
FILES: Final = ("--core", "--text", "--answers", "--data")  # flags of an evaluation that take a path


@dataclass(frozen=True, kw_only=True)
class StageReaders:
    """Readers of the words of stages that do not train: an evaluation's work, an export's bytes per value."""

    evaluation: Callable[[Sequence[str]], EvaluationWork]
    export: Callable[[Sequence[str]], int | None]


def require_stages(pipeline: CommandPipeline, readers: StageReaders) -> None:
    """Refuse an impossible stage before the earlier ones run; finished ones are skipped.

    Raises:
        ConfigurationError: The first one.
    """
    done = done_stages(pipeline)
    configs: dict[str, RunConfig] = {}
    for stage in pipeline.stages:
        if stage.verb == EVALUATE:
            _require_files(stage)
        if stage.name in done:
            continue
        with_name: Callable[[], object] = partial(_config_of, pipeline, stage, configs)
        if stage.verb != TRAIN:
            read: Callable[[Sequence[str]], object]
            read = readers.evaluation if stage.verb == EVALUATE else readers.export
            with_name = partial(read, pipeline.command(stage)[1:])
        _named(stage, with_name)


def require_buildable(pipeline: CommandPipeline) -> None:
    """Refuse a training whose parts do not fit this machine; torch is imported in another process only.

    Raises:
        ConfigurationError: The first one.
        EnvironmentProblem: This machine lacks something.
    """
    done = done_stages(pipeline)
    if any(stage.verb == TRAIN and stage.name not in done for stage in pipeline.stages):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
            other.submit(build_trainings, pipeline, [*done]).result()


def build_trainings(pipeline: CommandPipeline, done: Sequence[str]) -> None:
    """Build the parts of each training that is not done on the meta device, and discard them."""
    for stage in pipeline.stages:
        if stage.verb == TRAIN and stage.name not in done:
            _named(stage, partial(_first_way, pipeline, stage, partial(_build, pipeline, stage)))


def plan_pipeline(pipeline: CommandPipeline, readers: StageReaders) -> PipelinePlan:
    """Return the plan of every stage ahead; a preflight needs all of the data first."""
    stages = [*_StagesAhead(pipeline, readers).plans()]
    if has_preflight_ahead(pipeline):
        short = [one for one in _StagesAhead(pipeline.preflight(), readers).plans() if one.verb != PREPARE]
        data = [one for one in stages if one.verb == PREPARE]
        stages = [*data, _preflight_plan(short), *(one for one in stages if one.verb != PREPARE)]
    free = shutil.disk_usage(nearest_folder(pipeline.folder)).free
    return PipelinePlan(name=pipeline.name, stages=stages, free_bytes=free)


def _preflight_plan(short: Sequence[StagePlan]) -> StagePlan:
    """Return a preflight as one stage, whose files are deleted afterwards."""
    whole = PipelinePlan(name=PREFLIGHT, stages=short)
    return StagePlan(
        name=PREFLIGHT,
        verb=PREFLIGHT,
        seconds=whole.seconds,
        usd=whole.usd,
        disk_bytes=whole.disk_bytes,
        kept_bytes=0,
        basis="assumed",
        reasons=("every stage in short, pipeline.preflight_steps of each training; then deleted",),
        problem=next((f"{one.name}: {one.problem}" for one in short if one.problem), ""),
    )


@dataclass(frozen=True)
class _StagesAhead:
    """The stages of a pipeline; `planned` caches the trainings' plans, `prepared` the keys of their data."""

    pipeline: CommandPipeline
    readers: StageReaders
    planned: dict[str, PlannedTraining | str] = field(default_factory=dict[str, PlannedTraining | str])
    prepared: set[str] = field(default_factory=set[str])

    @cached_property
    def done(self) -> Mapping[str, EndedStage]:
        """Return the stages that have ended."""
        return done_stages(self.pipeline)

    def plans(self) -> Iterator[StagePlan]:
        """Yield a plan for each stage, and before a training's the preparation of its data."""
        for stage in self.pipeline.stages:
            if stage.name in self.done:
                yield done_stage(stage.name, stage.verb)
                continue
            training = self.training(stage.name if stage.verb == TRAIN else stage.of or "")
            if isinstance(training, str):
                problem = training if stage.verb == TRAIN else f"needs the plan of {stage.of}"
                yield StagePlan(name=stage.name, verb=stage.verb, problem=problem)
            else:
                yield from self._plans(stage, training)

    def training(self, name: str) -> PlannedTraining | str:
        """Return the plan of a training, or the reason why there is none."""
        if name not in self.planned:
            self.planned[name] = self._training(self.pipeline.stage(name))
        return self.planned[name]

    def _training(self, stage: PipelineStage) -> PlannedTraining | str:
        base = self.training(stage.of) if stage.of else None

        def plan(words: list[str]) -> PlannedTraining:
            check = stage_check(self.pipeline, stage)
            found = planned_training([*words, *self.pipeline.flags], learns=stage.of is None, check=check)
            if isinstance(base, PlannedTraining):
                require_same_start(self.pipeline, stage, found.config, base=base.config)
            return found

        try:
            return _first_way(self.pipeline, stage, plan, done=self.done)
        except LMTRAIN_ERRORS as problem:
            return str(problem)

    def _plans(self, stage: PipelineStage, training: PlannedTraining) -> Iterator[StagePlan]:
        """Yield the plans of one stage ahead."""
        words = self.pipeline.command(stage)[1:]
        try:
            if stage.verb == TRAIN:
                if (data := training.data()) and training.data_key not in self.prepared:
                    self.prepared.add(training.data_key)
                    yield replace(data, name=f"{stage.name}: data", verb=PREPARE)
                plan = training.steps()
            elif stage.verb == EVALUATE:
                plan = evaluated(training, self.readers.evaluation(words))
            else:
                plan = exported(training, bytes_per_value=self.readers.export(words))
        except LMTRAIN_ERRORS as problem:
            plan = StagePlan(problem=str(problem))
        yield replace(plan, name=stage.name, verb=stage.verb)


def stage_check(pipeline: CommandPipeline, stage: PipelineStage) -> Callable[[RunConfig], None]:
    """Return the check of a training's config: the rules of `lmtrain train` on its source and its starting weights."""

    def check(config: RunConfig) -> None:
        if stage.of is not None and config.init_from is None:
            config = replace(config, init_from=str(pipeline.folder / stage.of))
        require_conversations(config)
        if stage.of is None:
            require_chat_tokens(config, of=f"{stage.name}.")
        if config.init_from is None and not gives_nothing(config.adapter.target):
            word = f"adapter={config.adapter.word.lower()}"
            raise ConfigurationError(
                f"{word} trains changes of frozen weights, but {stage.name} starts from random ones; set it for a "
                "later stage."
            )
        require_objective(config)

    return check


def require_same_start(pipeline: CommandPipeline, stage: PipelineStage, config: RunConfig, *, base: RunConfig) -> None:
    """Refuse another tokenizer, model or longer context than those of the run to start from.

    Raises:
        ConfigurationError: They differ.
    """
    chosen = pipeline.chosen_groups(stage)
    there, here = base.model.values, config.model.values
    if TOKENIZER in config.run.allow_changes:
        here = {**here, "vocab_size": there.get("vocab_size")}  # here it follows the other tokenizer
    elif {TOKENIZER, EXPERIMENT} & chosen:
        _require_same_tokenizer(stage, config, base=base)
    is_own = TOKENIZER in config.run.allow_changes and TOKENIZER in chosen
    require_chat_tokens(config, of=f"{stage.name if is_own else pipeline.first_of(stage).name}.")
    if difference := size_difference(there, here):
        raise ConfigurationError(f"the run of {stage.of} is another model: {difference}. {model_fix(there, here)}")
    longest, context = base.model.get("max_context_tokens"), config.batch.context_tokens
    is_stated = any(key_of(word) == f"{MODEL}.max_context_tokens" for word in stage.words)
    if isinstance(longest, int) and context > longest and not is_stated and EXPERIMENT not in chosen:
        raise ConfigurationError(
            f"batch.context_tokens: must be at most model.max_context_tokens={longest} of {stage.of}, got {context}; "
            f"or set {stage.of}.model.max_context_tokens={context}."
        )


def _require_same_tokenizer(stage: PipelineStage, config: RunConfig, *, base: RunConfig) -> None:
    """Compare the settings of two tokenizers; learned ones are the same only if learned from the same text."""
    there, here = base.tokenizer, config.tokenizer
    learns = "sample_bytes" in here or "sample_bytes" in there
    if there.values == here.values and (not learns or _source(base) == _source(config)):
        return
    words = " ".join(word for word in stage.words if key_of(word).partition(".")[0] in (TOKENIZER, EXPERIMENT))
    raise ConfigurationError(
        f"{words or EXPERIMENT}: the weights start from {stage.of} and know only the ids of its tokenizer; set "
        f"{stage.of}.{TOKENIZER} for both, or 'run.allow_changes=[{TOKENIZER}]' to train on other ids."
    )


def _source(config: RunConfig) -> object:
    folder = config.data.node("folder")
    source = folder and folder.node("source")
    return source and source.values


def _require_files(stage: PipelineStage) -> None:
    for flag, path in pairwise(stage.words):
        if flag in FILES and not Path(path).exists():
            raise ConfigurationError(f"pipeline.stages.{stage.name}.words: {flag} {path} does not exist; correct it.")


def _config_of(pipeline: CommandPipeline, stage: PipelineStage, configs: dict[str, RunConfig]) -> RunConfig:
    """Return a training's config, compared with its base's; each is planned once, into `configs`."""
    from lmtrain.run.planning.plan import planned_runs

    if stage.name in configs:
        return configs[stage.name]
    base = _config_of(pipeline, pipeline.stage(stage.of), configs) if stage.of else None

    def plan(words: list[str]) -> RunConfig:
        config = planned_runs([*words, *pipeline.flags], more_checks=stage_check(pipeline, stage))[0].config
        if base is not None:
            require_same_start(pipeline, stage, config, base=base)
        return config

    configs[stage.name] = _first_way(pipeline, stage, plan)
    return configs[stage.name]


def _build(pipeline: CommandPipeline, stage: PipelineStage, words: Sequence[str]) -> None:
    from lmtrain.run.compose.arguments import parse_arguments
    from lmtrain.run.compose.compose import Choices, for_each_config
    from lmtrain.run.gate import check
    from lmtrain.run.planning.auto_choices import with_strategy
    from lmtrain.run.stored_runs.job import Job
    from lmtrain.run.validators.parallelism import require_launcher

    arguments = parse_arguments([*words, *pipeline.flags])

    def build(composed: Mapping[str, Any], choices: Choices) -> None:
        from lmtrain.run.execution.meta_build import build_on_meta  # torch

        values = {**composed, "init_from": str(pipeline.folder / stage.of) if stage.of else None}
        typed = [word for word in choices.overrides if word not in arguments.not_typed]
        config = check(values, allowed=arguments.allowed_targets, typed=typed)
        require_launcher(config.trainer, is_launched=False)
        config, _ = with_strategy(config)
        name = str(Path(pipeline.name, stage.name))
        build_on_meta(Job(config=config, overrides=typed, name=name, root=str(pipeline.root)), is_alone=False)

    for_each_config(build, arguments, config_name="train")


def _first_way(
    pipeline: CommandPipeline,
    stage: PipelineStage,
    plan: Callable[[list[str]], T],
    *,
    done: Mapping[str, EndedStage] | None = None,
) -> T:
    """Return the result of the first way to plan a training that is not refused, else raise the last error."""
    first, second = pipeline.ways_to_plan(stage, done=done or {})
    if stage.of in (done or {}):  # of an existing run both are the same
        return plan(first)
    try:
        return plan(first)
    except LMTRAIN_ERRORS:
        return plan(second)


def _named(stage: PipelineStage, look: Callable[[], object]) -> None:
    """Add a stage's name to its errors."""
    try:
        look()
    except LMTRAIN_ERRORS as refused:
        raise retold(refused, f"stage {stage.name}: {refused}") from refused
