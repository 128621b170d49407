"""The default stages of a preparation: those of cleaning=default and deduplicate=exact."""

from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from data_pipelines.stages.stage import Stage


def default_cleaning() -> dict[str, Stage]:
    """Return repair and the drop of empty documents."""
    return {"unicode": UnicodeRepair(), "length": LengthFilter()}


def default_deduplication() -> dict[str, Stage]:
    """Return the drop of repetitions."""
    return {"exact": ExactDeduplication()}
