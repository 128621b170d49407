"""Parts of a run unfit for adapters, decided from a config alone."""

from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.schema.source_signatures import gives_nothing
from lmtrain.run.validators.starting_model import start_of


def require_adaptable(config: RunConfig) -> None:
    """Refuse strategies that cut layers, and formats that replace them: an adapter is a part of its layer.

    Raises:
        ConfigurationError: Naming the nearest possible part.
    """
    if gives_nothing(config.adapter.target):
        return
    spread = config.spread
    if spread.tensor_ranks > 1 or spread.pipeline.num_stages > 1:
        whole = words_of(ModelSpread, lambda other: other.tensor_ranks == 1 and other.pipeline.num_stages == 1)
        raise ConfigurationError(
            f"adapter={config.adapter.word.lower()} keeps layers whole, and strategy={config.strategy.word} cuts "
            f"them; nearest valid: {one_of(whole)}."
        )
    precision = facts_of(config.precision.values, PrecisionFacts, allowed=config.allowed, has_bf16=True)
    if precision is not None and precision.bytes_of.matmul == "fp8":
        held = words_of(PrecisionFacts, lambda other: other.bytes_of.matmul == "bf16", has_bf16=True)
        raise ConfigurationError(
            f"adapter={config.adapter.word.lower()} changes layers that precision={config.precision.word} replaces; "
            f"nearest valid: {one_of(held)}."
        )


def require_trained_weights(config: RunConfig) -> None:
    """Refuse adapters of untrained weights.

    Raises:
        ConfigurationError: There is no `init_from`.
    """
    if config.init_from is None and not gives_nothing(config.adapter.target):
        raise ConfigurationError(
            f"adapter={config.adapter.word.lower()} trains changes of frozen weights, and init_from=null has random "
            f"ones; {start_of(config)}"
        )
