"""Parts of a run unfit for its task or its adapter, from the config alone."""

from typing import Final

from lmtrain.accounting.batches import MICRO_BATCH, BatchPlan
from lmtrain.accounting.options.parts import ObjectiveFacts, PackingFacts, SourceFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import wrong
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of, require_facts
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.signatures import gives_nothing

START: Final = "init_from=RUN, a run here or the folder of `lmtrain import`"


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


def require_objective(config: RunConfig) -> None:
    """Refuse a run of an objective without a starting model or a teacher, or with parts unfit for its task."""
    facts = objective_facts(config)
    if facts is not None and facts.takes_teacher and config.teacher is None:
        raise wrong(
            "teacher", f"a model to learn from with task={facts.task}", None, START.replace("init_from", "teacher")
        )
    if facts is not None and not facts.takes_teacher and config.init_from is None:
        raise wrong("init_from", f"a model to start from with task={facts.task}", None, START)
    require_parts_of_task(config)


def require_parts_of_task(config: RunConfig) -> None:
    """Refuse rows of more than one answer, mixtures, and ranks that share sequences; a plan needs no starting model."""
    facts = objective_facts(config)
    if config.teacher is not None and (facts is None or not facts.takes_teacher):
        raise wrong("teacher", "null without an objective that takes one", config.teacher, "task=distill")
    if facts is None:
        return
    if facts.takes_teacher:
        require_whole_sequences(config)
        return
    task, (source, given) = f"task={facts.task}", _source(config)
    if source and given is not None and facts.rows_together > 1 and not given.has_pairs:
        instead = "source=preference_pairs 'source.paths=[pairs.jsonl]'"
        raise wrong("source", f"one of pairs of answers with {task}", source.word, instead)
    rule = f"with an answer per row with {task}"
    config.require_option(PackingFacts, lambda packing: packing.row_is_document, rule, unstated=PackingFacts())
    if "sources" in config.data:
        raise wrong("data", f"one source with {task}, which takes rows together", "mixture", "data=prepared")
    require_whole_sequences(config)


def require_whole_sequences(config: RunConfig) -> None:
    """Refuse ranks that share sequences of an objective, and sharded weights where it generates text."""
    facts = objective_facts(config)
    if facts is None:
        return

    def fits(spread: ModelSpread) -> bool:
        is_whole = spread.tensor_ranks == spread.context_ranks == spread.pipeline.num_stages == 1
        has_one_step = spread.meets_every_steps is None
        return is_whole and has_one_step and not (facts.num_new_tokens and spread.cuts_parameters)

    whole = "weights" if facts.num_new_tokens else "sequences"
    rule = f"with whole {whole} on each rank with task={facts.task}"
    config.require_option(ModelSpread, fits, rule, unstated=ModelSpread())


def require_examples(batch: BatchPlan, facts: ObjectiveFacts | None) -> None:
    """Refuse micro-batches that part the rows of an example; the loss of next tokens (None) has single rows."""
    rows = batch.sequences_per_micro_step
    if facts is None or not rows % (together := facts.example_rows):
        return
    if possible := batch.micro_batches(example_rows=together):
        nearest = str(min(possible, key=lambda size: abs(size - rows)))
    else:
        whole = -(-batch.sequences_per_rank // together) * together
        nearest = f"batch.tokens_per_step={whole * batch.num_data_ranks * batch.context_tokens}"
    rule = f"a multiple of {together} with task={facts.task}, whose answers stay together"
    raise wrong(MICRO_BATCH, rule, rows, nearest)


def require_conversations(config: RunConfig) -> None:
    """Refuse a source of text for a packing of conversations or an objective; prepared data is checked when opened."""
    packing, objective = config.facts(PackingFacts) or PackingFacts(), objective_facts(config)
    objective = None if objective and objective.takes_teacher else objective
    source, facts = _source(config)
    has_own_rule = objective is not None and objective.rows_together > 1  # pairs
    if source is None or facts is None or facts.has_conversations or has_own_rule:
        return
    if not (packing.needs_conversations or objective):
        return
    own = (
        f"{facts.with_conversations} (rows of messages, or of prompt and completion), "
        if facts.with_conversations
        else ""
    )
    text = "" if objective else ", or task=pretrain for all words of the text"
    rule = f"one of conversations with task={objective.task if objective else 'sft'}"
    raise wrong("source", rule, source.word, f"{own}source=made_conversations{text}")


def require_adaptable(config: RunConfig) -> None:
    """Refuse stages of layers, and formats that replace layers: an adapter is a part of its layer."""
    if gives_nothing(config.adapter.target):
        return
    adapter = f"with adapter={config.adapter.word.lower()}"
    config.require_option(
        ModelSpread, lambda spread: spread.pipeline.num_stages == 1, f"with all layers on each rank {adapter}",
        unstated=ModelSpread(),
    )  # fmt: skip
    rule = f"that keeps layers {adapter}"
    config.require_option(PrecisionFacts, lambda precision: precision.bytes_of.matmul != "fp8", rule, has_bf16=True)


def require_trained_weights(config: RunConfig) -> None:
    """Refuse adapters of untrained weights."""
    if config.init_from is None and not gives_nothing(config.adapter.target):
        raise wrong("init_from", f"a model to adapt with adapter={config.adapter.word.lower()}", None, START)
