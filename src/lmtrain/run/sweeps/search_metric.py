"""The metric of a search: refused before the first trial where no trial would log it."""

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.source_signatures import OURS
from lmtrain.run.validators.callbacks import OF_AVERAGES, callback_facts, keeps_no_average, logged_metrics
from lmtrain.search.search_settings import SearchSettings


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
    if metric in OF_AVERAGES and keeps_no_average(config):
        raise ConfigurationError(
            f"sweep.metric={metric} is of averaged weights, and no weight_average keeps any; nearest valid: "
            f"sweep.metric={metric.replace('ema_', '')}."
        )
    logged = logged_metrics(config)
    if metric not in logged and all(node.target.startswith(OURS) for node in config.callbacks.values()):
        raise ConfigurationError(
            f"sweep.metric={metric} is logged by no trial; there are {', '.join(logged)}.{suggest(metric, logged)}"
        )
