"""Parts of a run unfit for separate workers, decided from a config alone."""

from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.schema.source_signatures import gives_nothing


def require_workers(config: RunConfig) -> None:
    """Refuse parts in need of all ranks' weights or losses at every step, and weights without fp32 sums.

    Raises:
        ConfigurationError: Naming the nearest possible part.
    """
    if config.spread.meets_every_steps is None:
        return
    for node in (config.spikes, config.weight_average):
        if not gives_nothing(node.target):
            raise ConfigurationError(
                f"{node.key} follows steps that are the same on every rank, and the workers of strategy="
                f"{config.strategy.word} train apart; nearest valid: {node.key}=none."
            )
    optimizer = facts_of(config.optimizer.values, OptimizerFacts, allowed=config.allowed)
    if optimizer is not None and optimizer.averages_steps:
        raise ConfigurationError(
            f"optimizer={config.optimizer.word} evaluates other weights than it trains, and strategy="
            f"{config.strategy.word} the global ones; nearest valid: "
            f"{one_of(words_of(OptimizerFacts, lambda other: not other.averages_steps))}."
        )
    precision = facts_of(config.precision.values, PrecisionFacts, allowed=config.allowed, has_bf16=True)
    if precision is not None and precision.bytes_of.weights != 4:
        fits = words_of(PrecisionFacts, lambda other: other.bytes_of.weights == 4, has_bf16=True)
        raise ConfigurationError(
            f"precision={config.precision.word} keeps weights of {precision.bytes_of.weights} bytes, and strategy="
            f"{config.strategy.word} averages fp32 weights; nearest valid: {one_of(fits)}."
        )
