"""Parts of a run unfit for an objective of its own, decided from a config alone."""

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.options.parts import ObjectiveFacts, PackingFacts, SourceFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of, require_facts
from lmtrain.run.schema.source_signatures import gives_nothing
from lmtrain.run.validators.starting_model import start_of


def objective_facts(config: RunConfig) -> ObjectiveFacts | None:
    """Return the facts of an objective of its own, None for the loss of next tokens."""
    if gives_nothing(config.objective.target):
        return None
    return require_facts(config.objective.values, ObjectiveFacts, allowed=config.allowed)


def require_objective(config: RunConfig) -> None:
    """Refuse a run without a starting model, or with parts unfit for its task.

    Raises:
        ConfigurationError: Naming the nearest part that can be.
    """
    facts = objective_facts(config)
    if facts is not None and config.init_from is None:
        raise ConfigurationError(
            f"task={facts.task} learns beside the model that it starts from, and init_from=null has random weights; "
            f"{start_of(config)}"
        )
    require_parts_of_task(config)


def require_parts_of_task(config: RunConfig) -> None:
    """Refuse rows of more than one answer, mixtures, and ranks that share sequences; a plan needs no starting model.

    Raises:
        ConfigurationError: Naming the nearest part that can be.
    """
    facts = objective_facts(config)
    if facts is None:
        return
    task = f"task={facts.task}"
    _require_pairs(config, facts)
    packing = facts_of(config.packing.values, PackingFacts, allowed=config.allowed) or PackingFacts()
    if not packing.row_is_document:
        raise ConfigurationError(
            f"packing puts several documents into a row, and {task} takes each answer as a row; nearest valid: "
            f"{one_of(words_of(PackingFacts, lambda other: other.row_is_document))}."
        )
    if config.data.node("sources") is not None or "sources" in config.data:
        kept = "pairs" if facts.rows_together > 1 else "groups"
        raise ConfigurationError(f"data=mixture mixes rows, and {task} takes them in {kept}; leave data out.")
    require_whole_sequences(config)
    if facts.num_new_tokens and config.compile.get("cuda_graphs", False):
        raise ConfigurationError(f"compile.cuda_graphs=true records a step, and {task} writes in it; leave it out.")


def _require_pairs(config: RunConfig, facts: ObjectiveFacts) -> None:
    """Refuse a source of single rows where neighbouring ones are an example; prepared data tells as it is read."""
    folder = config.data.node("folder")
    source = folder and folder.node("source")
    told = source and facts_of(source.values, SourceFacts, allowed=config.allowed)
    if source and told is not None and facts.rows_together > 1 and not told.has_pairs:
        raise ConfigurationError(
            f"the source ({source.word}) gives no pairs of answers, and task={facts.task} learns from them; nearest "
            "valid: source=preference_pairs 'source.paths=[pairs.jsonl]'."
        )


def require_whole_sequences(config: RunConfig) -> None:
    """Refuse ranks that share sequences of an objective, and for writing shards of weights, gathered for every token.

    Raises:
        ConfigurationError: Naming the strategies that can be.
    """
    facts = objective_facts(config)
    if facts is None:
        return

    def does(spread: ModelSpread) -> bool:
        is_plain = (
            spread.tensor_ranks == spread.context_ranks == spread.pipeline.num_stages == 1
            and spread.meets_every_steps is None
        )
        return is_plain and not (facts.num_new_tokens and spread.cuts_parameters)

    if not does(config.spread):
        work = "writes with whole weights" if facts.num_new_tokens else "scores whole sequences"
        raise ConfigurationError(
            f"task={facts.task} {work} on each rank, and strategy={config.strategy.word} does not; nearest valid: "
            f"{one_of(words_of(ModelSpread, does))}."
        )


def example_rows(config: RunConfig) -> int:
    """Return the rows of an example, 1 for the loss of next tokens."""
    facts = objective_facts(config)
    return facts.example_rows if facts else 1


def require_examples(batch: BatchPlan, facts: ObjectiveFacts | None) -> None:
    """Refuse micro-batches that part the rows of an example; the loss of next tokens (None) has single rows.

    Raises:
        ConfigurationError: Their sequences are no multiple of an example's rows.
    """
    rows = batch.micro_batch_sequences
    if facts is not None and rows % (together := facts.example_rows):
        parted = "pairs of answers" if facts.rows_together > 1 else f"groups of {together} answers"
        nearest = _whole(batch, together)
        raise ConfigurationError(f"batch.micro_batch_sequences={rows} parts {parted}; nearest valid: {nearest}.")


def _whole(batch: BatchPlan, together: int) -> str:
    """Return the nearest micro-batch of whole examples that divides a step, or else the nearest step that has one."""
    rows, total = batch.micro_batch_sequences, batch.sequences_per_rank
    if possible := batch.micro_batches(example_rows=together):
        return str(min(possible, key=lambda size: abs(size - rows)))
    needed = -(-total // together) * together * batch.num_data_ranks * batch.context_tokens
    return f"batch.tokens_per_step={needed}"
