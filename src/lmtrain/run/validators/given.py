"""Settings of a run's parts that have no value of their own: each is typed."""

from collections.abc import Mapping
from typing import Any

from lmtrain.run.run_config import KEYS, SCALARS
from lmtrain.run.schema.check import REPEATS
from lmtrain.run.schema.no_value import MISSING, no_value
from lmtrain.run.schema.node import leaf_keys, node_at


def require_given(values: Mapping[str, Any]) -> None:
    """Refuse the first setting without a value.

    Raises:
        ConfigurationError: There is one.
    """
    for name in (*sorted({*KEYS} - {*SCALARS, REPEATS}), REPEATS):
        missing = [key for key in leaf_keys(values[name], f"{name}.") if node_at(values, key) == MISSING]
        if missing:
            raise no_value(missing[0], of_pairs=name == "source" and _gives_pairs(values))


def _gives_pairs(values: Mapping[str, Any]) -> bool:
    """Tell whether an objective of its own reads a source of pairs; the loss of next tokens asks for none."""
    from lmtrain.accounting.options.parts import SourceFacts  # only to refuse
    from lmtrain.run.schema.facts import facts_of
    from lmtrain.run.schema.source_signatures import gives_nothing

    if gives_nothing(str(values["objective"].get("_target_"))):
        return False
    source = facts_of(values["source"], SourceFacts)
    return source is not None and source.has_pairs
