"""A training beside the config of its base, an earlier stage: the run to start from is not there yet."""

from collections.abc import Callable
from dataclasses import replace

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.paths import key_of
from lmtrain.run.pipelines.stages import (
    EXPERIMENT,
    MODEL,
    TOKENIZER,
    TRAIN,
    CommandPipeline,
    PipelineStage,
)
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.source_signatures import gives_nothing
from lmtrain.run.stored_runs.other_model import give_its_model, size_difference
from lmtrain.run.validators.conversations import require_chat_tokens, require_conversations
from lmtrain.run.validators.objective import require_objective


def stage_check(pipeline: CommandPipeline, stage: PipelineStage) -> Callable[[RunConfig], None]:
    """Return the check of a training's config: the rules of `lmtrain train` on its source and its starting weights."""

    def check(config: RunConfig) -> None:
        if stage.of is not None and config.init_from is None:
            config = replace(config, init_from=str(pipeline.folder / stage.of))
        require_conversations(config)
        if stage.of is None:
            require_chat_tokens(config, of=f"{stage.name}.")
        _require_weights_to_adapt(pipeline, stage, config)
        require_objective(config)

    return check


def _require_weights_to_adapt(pipeline: CommandPipeline, stage: PipelineStage, config: RunConfig) -> None:
    """Refuse adapters of a training without a run to start from, in the words of a later one."""
    if config.init_from is None and not gives_nothing(config.adapter.target):
        word = f"adapter={config.adapter.word.lower()}"
        later = ", ".join(f"{other.name}.{word}" for other in pipeline.stages if other.verb == TRAIN and other.of)
        raise ConfigurationError(
            f"{word} trains changes of frozen weights, and {stage.name} begins with random ones"
            f"{f'; nearest valid: {later}' if later else ''}."
        )


def require_same_start(pipeline: CommandPipeline, stage: PipelineStage, config: RunConfig, *, base: RunConfig) -> None:
    """Refuse another tokenizer, model or longer context than those of the run to start from.

    Raises:
        ConfigurationError: With the words of the stage for them.
    """
    chosen = pipeline.chosen_groups(stage)
    there, here = base.model.values, config.model.values
    if TOKENIZER in config.run.allow_changes:
        here = {**here, "vocab_size": there.get("vocab_size")}  # its run's: here it follows the other tokenizer
    elif {TOKENIZER, EXPERIMENT} & chosen:
        _require_same_tokenizer(stage, config, base=base)
    is_own = TOKENIZER in config.run.allow_changes and TOKENIZER in chosen
    require_chat_tokens(config, of=f"{stage.name if is_own else pipeline.first_of(stage).name}.")
    if difference := size_difference(there, here):
        fix = give_its_model(there, here)
        raise ConfigurationError(f"the run of {stage.of} is another model: {difference}. {fix}")
    longest, context = base.model.get("max_context_tokens"), config.batch.context_tokens
    is_stated = any(key_of(word) == f"{MODEL}.max_context_tokens" for word in stage.words)
    if isinstance(longest, int) and context > longest and not is_stated and EXPERIMENT not in chosen:
        raise ConfigurationError(
            f"batch.context_tokens={context} is beyond model.max_context_tokens={longest} of {stage.of}; nearest "
            f"valid: {longest}, or {stage.of}.model.max_context_tokens={context}."
        )


def _require_same_tokenizer(stage: PipelineStage, config: RunConfig, *, base: RunConfig) -> None:
    """Compare the settings of two tokenizers: learned ones are the same of the same text alone."""
    there, here = base.tokenizer, config.tokenizer
    learns = "sample_bytes" in here or "sample_bytes" in there
    is_same_text = _source(base) == _source(config)
    if there.values == here.values and (is_same_text or not learns):
        return
    words = [word for word in stage.words if key_of(word).partition(".")[0] in (TOKENIZER, EXPERIMENT)]
    own = " ".join(words) or EXPERIMENT
    moved = " ".join(f"{stage.of}.{word}" for word in words if key_of(word).partition(".")[0] == TOKENIZER)
    raise ConfigurationError(
        f"{own}: its weights start from {stage.of}, and know the ids of that tokenizer alone. Leave it out, or type "
        f"{moved or f'{stage.of}.tokenizer=...'} for both; 'run.allow_changes=[{TOKENIZER}]' trains them on other ids."
    )


def _source(config: RunConfig) -> object:
    folder = config.data.node("folder")
    source: Node | None = folder and folder.node("source")
    return source and source.values
