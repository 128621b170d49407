"""Parts of a run unfit for its task or its adapter, from the config alone."""

from typing import Final

from lmtrain.accounting.batches import MICRO_BATCH, BatchPlan
from lmtrain.accounting.options.parts import ObjectiveFacts, PackingFacts, SourceFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of, require_facts
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.signatures import gives_nothing

START: Final = "Did you mean init_from=RUN, a run here or the folder of `lmtrain import`?"


def objective_facts(config: RunConfig) -> ObjectiveFacts | None:
    """Return the facts of an objective, None for the loss of next tokens."""
    if gives_nothing(config.objective.target):
        return None
    return require_facts(config.objective.values, ObjectiveFacts, allowed=config.allowed)


def example_rows(config: RunConfig) -> int:
    """Return the rows of an example, 1 for the loss of next tokens."""
    facts = objective_facts(config)
    return facts.example_rows if facts else 1


def _source(config: RunConfig) -> tuple[Node | None, SourceFacts | None]:
    """Return the source that data is prepared from, and its facts; None for data that is there."""
    folder = config.data.node("folder")
    source = folder and folder.node("source")
    return source, source and facts_of(source.values, SourceFacts, allowed=config.allowed)


def _row_is_document(config: RunConfig) -> bool:
    return (config.facts(PackingFacts) or PackingFacts()).row_is_document


def require_objective(config: RunConfig) -> None:
    """Refuse a run of an objective without a starting model, or with parts unfit for its task."""
    facts = objective_facts(config)
    if facts is not None and config.init_from is None:
        raise ConfigurationError(
            f"task={facts.task} needs a model to start from, and init_from=null has random weights. {START}"
        )
    require_parts_of_task(config)


def require_parts_of_task(config: RunConfig) -> None:
    """Refuse rows of more than one answer, mixtures, and ranks that share sequences; a plan needs no starting model."""
    facts = objective_facts(config)
    if facts is None:
        return
    task, (source, given) = f"task={facts.task}", _source(config)
    if source and given is not None and facts.rows_together > 1 and not given.has_pairs:
        raise ConfigurationError(
            f"the source ({source.word}) gives no pairs of answers, and {task} learns from them. Did you mean "
            "source=preference_pairs 'source.paths=[pairs.jsonl]'?"
        )
    if not _row_is_document(config):
        raise ConfigurationError(
            f"packing puts several documents into a row, and {task} takes each answer as a row. Did you mean "
            f"{one_of(words_of(PackingFacts, lambda other: other.row_is_document))}?"
        )
    if config.data.node("sources") is not None or "sources" in config.data:
        kept = "pairs" if facts.rows_together > 1 else "groups"
        raise ConfigurationError(f"data=mixture mixes rows, and {task} takes them in {kept}; leave data out.")
    require_whole_sequences(config)
    if facts.num_new_tokens and config.compile.get("cuda_graphs", False):
        raise ConfigurationError(f"compile.cuda_graphs=true records a step, and {task} generates in it; leave it out.")


def require_whole_sequences(config: RunConfig) -> None:
    """Refuse ranks that share sequences of an objective, and sharded weights where it generates text."""
    facts = objective_facts(config)
    if facts is None:
        return

    def fits(spread: ModelSpread) -> bool:
        is_whole = spread.tensor_ranks == spread.context_ranks == spread.pipeline.num_stages == 1
        has_one_step = spread.meets_every_steps is None
        return is_whole and has_one_step and not (facts.num_new_tokens and spread.cuts_parameters)

    if not fits(config.spread):
        work = "generates with whole weights" if facts.num_new_tokens else "scores whole sequences"
        raise ConfigurationError(
            f"task={facts.task} {work} on each rank, and strategy={config.strategy.word} does not. Did you mean "
            f"{one_of(words_of(ModelSpread, fits))}?"
        )


def require_examples(batch: BatchPlan, facts: ObjectiveFacts | None) -> None:
    """Refuse micro-batches that part the rows of an example; the loss of next tokens (None) has single rows."""
    rows = batch.sequences_per_micro_step
    if facts is None or not rows % (together := facts.example_rows):
        return
    parted = "pairs of answers" if facts.rows_together > 1 else f"groups of {together} answers"
    if possible := batch.micro_batches(example_rows=together):
        nearest = str(min(possible, key=lambda size: abs(size - rows)))
    else:
        whole = -(-batch.sequences_per_rank // together) * together
        nearest = f"batch.tokens_per_step={whole * batch.num_data_ranks * batch.context_tokens}"
    raise ConfigurationError(f"{MICRO_BATCH}={rows} parts {parted}. Did you mean {nearest}?")


def require_conversations(config: RunConfig) -> None:
    """Refuse a source of text for a packing of conversations or an objective; prepared data is checked when opened."""
    packing, objective = config.facts(PackingFacts) or PackingFacts(), objective_facts(config)
    source, facts = _source(config)
    has_own_rule = objective is not None and objective.rows_together > 1  # pairs
    if source is None or facts is None or facts.has_conversations or has_own_rule:
        return
    if not (packing.needs_conversations or objective):
        return
    own = f"{facts.with_conversations} (a column of lists of {{role, content}}), " if facts.with_conversations else ""
    learns, instead = "task=sft learns only the assistant's words", ", or task=pretrain for all words of the text"
    if objective:
        learns, instead = f"task={objective.task} asks the last question", ""
    raise ConfigurationError(
        f"the source ({source.word}) is text, and {learns} of conversations. Did you mean {own}"
        f"source=made_conversations{instead}?"
    )


def require_adaptable(config: RunConfig) -> None:
    """Refuse strategies that cut layers, and formats that replace them: an adapter is a part of its layer."""
    if gives_nothing(config.adapter.target):
        return
    adapter, spread = f"adapter={config.adapter.word.lower()}", config.spread
    if spread.tensor_ranks > 1 or spread.pipeline.num_stages > 1:
        whole = words_of(ModelSpread, lambda other: other.tensor_ranks == 1 and other.pipeline.num_stages == 1)
        raise ConfigurationError(
            f"{adapter} keeps layers whole, and strategy={config.strategy.word} cuts them. Did you mean "
            f"{one_of(whole)}?"
        )
    precision = config.facts(PrecisionFacts, has_bf16=True)
    if precision is not None and precision.bytes_of.matmul == "fp8":
        held = words_of(PrecisionFacts, lambda other: other.bytes_of.matmul == "bf16", has_bf16=True)
        raise ConfigurationError(
            f"{adapter} changes layers that precision={config.precision.word} replaces. Did you mean {one_of(held)}?"
        )


def require_trained_weights(config: RunConfig) -> None:
    """Refuse adapters of untrained weights."""
    if config.init_from is None and not gives_nothing(config.adapter.target):
        raise ConfigurationError(
            f"adapter={config.adapter.word.lower()} trains changes of frozen weights, and init_from=null has random "
            f"ones. {START}"
        )
