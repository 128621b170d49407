"""Parts of a run unfit for an objective of its own, decided from a config alone."""

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.options.parts import PackingFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.composition.command_line.group_options import one_of, words_of
from lmtrain.composition.nodes.facts import facts_of
from lmtrain.composition.nodes.source_signatures import gives_nothing
from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError


def require_objective(config: RunConfig) -> None:
    """Refuse a run without a starting model, rows of more than one answer, mixtures, and ranks that share sequences.

    Raises:
        ConfigurationError: Naming the nearest part that can be.
    """
    if gives_nothing(config.objective.target):
        return
    if config.init_from is None:
        raise ConfigurationError(
            "task=dpo learns beside the model that it starts from, and init_from=null has random weights; add "
            "init_from=RUN or the folder of `lmtrain import`."
        )
    packing = facts_of(config.packing.values, PackingFacts, allowed=config.allowed) or PackingFacts()
    if not packing.holds_out_whole_documents:
        raise ConfigurationError(
            "packing puts several documents into a row, and task=dpo takes each answer as a row; nearest valid: "
            f"{one_of(words_of(PackingFacts, lambda other: other.holds_out_whole_documents))}."
        )
    if config.data.node("sources") is not None or "sources" in config.data:
        raise ConfigurationError("data=mixture mixes rows, and task=dpo takes them in pairs; leave data out.")
    spread = config.spread
    if spread.tensor_ranks > 1 or spread.pipeline.num_stages > 1 or spread.meets_every_steps is not None:
        plain = words_of(
            ModelSpread,
            lambda other: other.tensor_ranks == other.pipeline.num_stages == 1 and other.meets_every_steps is None,
        )
        raise ConfigurationError(
            f"task=dpo scores whole sequences on each rank, and strategy={config.strategy.word} does not; nearest "
            f"valid: {one_of(plain)}."
        )


def require_examples(batch: BatchPlan, *, rows_together: int) -> None:
    """Refuse micro-batches that part the rows of an example.

    Raises:
        ConfigurationError: Their sequences are no multiple of an example's rows.
    """
    rows = batch.micro_batch_sequences
    if rows % rows_together:
        raise ConfigurationError(
            f"batch.micro_batch_sequences={rows} parts pairs of answers; nearest valid: {rows + rows_together - 1}."
        )
