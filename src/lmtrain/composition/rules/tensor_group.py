"""Parts of a run unfit for ranks with a share of each product, decided from a config alone."""

from lmtrain.accounting.options.parts import LossFacts
from lmtrain.composition.command_line.group_options import one_of, words_of
from lmtrain.composition.nodes.facts import facts_of
from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError


def require_parts(config: RunConfig) -> None:
    """Refuse a loss over a whole vocabulary, sharded over a tensor group.

    Raises:
        ConfigurationError: Naming the nearest possible part.
    """
    if config.spread.tensor_ranks == 1:
        return
    loss = facts_of(config.loss.values, LossFacts, allowed=config.allowed) or LossFacts()
    if not loss.takes_shards:
        raise ConfigurationError(
            f"loss={config.loss.target.split('.')[-2]} reads the whole vocabulary, and under strategy="
            f"{config.strategy.word} a rank has a shard of it; nearest valid: "
            f"{one_of(words_of(LossFacts, lambda other: other.takes_shards))}."
        )
