"""The metric of a search: refused before the first trial where no trial would log it."""

from typing import Final

from lmtrain.composition.nodes.source_signatures import OURS, gives_nothing
from lmtrain.composition.planning.callbacks import callback_facts
from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.search.search_settings import KNOWN_METRICS, SearchSettings

OF_AVERAGES: Final = tuple(metric for metric in KNOWN_METRICS if "ema_" in metric)


def require_metric(config: RunConfig, settings: SearchSettings) -> None:
    """Refuse a metric that no trial of a config logs; callbacks of somebody else may log more than is known here.

    Raises: ConfigurationError.
    """
    metric = settings.metric
    if metric.startswith("validation/") and not any(facts.reads for facts in callback_facts(config)):
        raise ConfigurationError(
            f"sweep.metric={metric} needs callbacks.validation, which is switched off; nearest valid: "
            "sweep.metric=train/loss."
        )
    if metric in OF_AVERAGES and _keeps_no_average(config):
        raise ConfigurationError(
            f"sweep.metric={metric} is of averaged weights, and no weight_average keeps any; nearest valid: "
            f"sweep.metric={metric.replace('ema_', '')}."
        )
    logged = logged_metrics(config)
    if metric not in logged and all(node.target.startswith(OURS) for node in config.callbacks.values()):
        raise ConfigurationError(
            f"sweep.metric={metric} is logged by no trial; there are {', '.join(logged)}.{suggest(metric, logged)}"
        )


def logged_metrics(config: RunConfig) -> list[str]:
    """Return the measures that a run of a config logs, better where they are lower."""
    sources: dict[str, object] = config.data.get("sources") or {}
    of_sources = [f"validation/{name}/bits_per_byte" for name in sources] if len(sources) > 1 else []
    known = [name for name in KNOWN_METRICS if not (name in OF_AVERAGES and _keeps_no_average(config))]
    return [*known, *of_sources]


def _keeps_no_average(config: RunConfig) -> bool:
    return gives_nothing(config.weight_average.target)
