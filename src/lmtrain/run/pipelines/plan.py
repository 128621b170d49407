"""Check and plan a pipeline's trainings before the first one runs: a typing error would cost the hours before it.

The run that a later training starts from does not exist yet, so its config is compared with that of its base.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeVar

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, retold
from lmtrain.run.compose.arguments import Choices, parse_arguments
from lmtrain.run.compose.compose import for_each_config
from lmtrain.run.compose.paths import key_of
from lmtrain.run.gate import check
from lmtrain.run.pipelines.run import done_stages
from lmtrain.run.pipelines.stages import EVALUATE, EXPERIMENT, MODEL, TOKENIZER, TRAIN, CommandPipeline, PipelineStage
from lmtrain.run.planning.plan import PlannedRun, planned_runs
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.signatures import gives_nothing
from lmtrain.run.stored_runs.model_difference import model_fix, size_difference
from lmtrain.run.validators.task import require_chat_tokens, require_conversations, require_objective

T = TypeVar("T")
FILES: Final = ("--core", "--text", "--answers", "--data")  # flags of an evaluation that take a path
ReadWords = Callable[[Sequence[str]], object]


def require_stages(pipeline: CommandPipeline, readers: Mapping[str, ReadWords]) -> None:
    """Refuse an impossible stage before the earlier ones run; finished ones are skipped.

    `readers` read the arguments of an evaluation and of an export.

    Raises:
        ConfigurationError: The first one.
    """
    done = done_stages(pipeline)
    trainings = PlannedTrainings(pipeline, done=())
    for stage in pipeline.stages:
        if stage.verb == EVALUATE:
            _require_files(stage)
        if stage.name in done:
            continue
        if stage.verb == TRAIN:
            _named(stage, partial(trainings.plan, stage))
        else:
            _named(stage, partial(readers[stage.verb], pipeline.command(stage)[1:]))


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


def plan_pipeline(pipeline: CommandPipeline) -> list[dict[str, Any]]:
    """Return a row of plain values for each stage: a training's time, dollars, tokens and kept bytes, or its problem.

    Evaluations and exports have none of these figures; a stage that is done needs nothing more.
    """
    done = done_stages(pipeline)
    trainings = PlannedTrainings(pipeline, done=[*done])
    rows: list[dict[str, Any]] = []
    for stage in pipeline.stages:
        row: dict[str, Any] = {"name": stage.name, "verb": stage.verb, "is_done": stage.name in done}
        row |= {"seconds": None, "usd": None, "tokens": None, "kept_bytes": None, "problem": ""}
        if stage.verb == TRAIN and stage.name not in done:
            try:
                row |= _figures(trainings.plan(stage))
            except LMTRAIN_ERRORS as problem:
                row["problem"] = str(problem)
        rows.append(row)
    return rows


def _figures(run: PlannedRun) -> dict[str, Any]:
    plan = run.plan
    return {
        "seconds": plan.seconds,
        "usd": plan.usd,
        "tokens": plan.horizon.tokens if plan.knows_its_end else None,
        "kept_bytes": plan.checkpoints.kept_bytes if plan.checkpoints else None,
        "problem": "" if run.advice.is_possible else "\n".join(run.advice.lines),
    }


class PlannedTrainings:
    """The plans of a pipeline's trainings, each computed once and compared with its base's; those `done` have runs."""

    def __init__(self, pipeline: CommandPipeline, *, done: Collection[str]) -> None:
        self._pipeline, self._done = pipeline, done
        self._planned: dict[str, PlannedRun] = {}

    def plan(self, stage: PipelineStage) -> PlannedRun:
        """Return a training's plan.

        Raises:
            ConfigurationError: It cannot be trained, or its base cannot.
        """
        if stage.name not in self._planned:
            base = self.plan(self._pipeline.stage(stage.of)) if stage.of else None

            def plan(words: list[str]) -> PlannedRun:
                check = stage_check(self._pipeline, stage)
                (found,) = planned_runs([*words, *self._pipeline.flags], more_checks=check)
                if base is not None:
                    require_same_start(self._pipeline, stage, found.config, base=base.config)
                return found

            self._planned[stage.name] = _first_way(self._pipeline, stage, plan, done=self._done)
        return self._planned[stage.name]


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


def _build(pipeline: CommandPipeline, stage: PipelineStage, words: Sequence[str]) -> None:
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
    pipeline: CommandPipeline, stage: PipelineStage, plan: Callable[[list[str]], T], *, done: Collection[str] = ()
) -> T:
    """Return the result of the first way to plan a training that is not refused, else raise the last error."""
    first, second = pipeline.ways_to_plan(stage, done=done)
    if stage.of in done:  # of an existing run both are the same
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
