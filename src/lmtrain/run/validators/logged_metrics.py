"""The measures that a run logs, better where they are lower."""

from typing import Final

from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.source_signatures import gives_nothing
from lmtrain.search.search_settings import KNOWN_METRICS

OF_AVERAGES: Final = tuple(metric for metric in KNOWN_METRICS if "ema_" in metric)


def logged_metrics(config: RunConfig) -> list[str]:
    """Return the measures that a run of a config logs, better where they are lower."""
    sources: dict[str, object] = config.data.get("sources") or {}
    of_sources = [f"validation/{name}/bits_per_byte" for name in sources] if len(sources) > 1 else []
    known = [name for name in KNOWN_METRICS if not (name in OF_AVERAGES and keeps_no_average(config))]
    return [*known, *of_sources]


def keeps_no_average(config: RunConfig) -> bool:
    """Tell whether a run has no average of its weights to score."""
    return gives_nothing(config.weight_average.target)
