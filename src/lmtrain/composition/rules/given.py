"""Settings of a run's parts that have no value of their own: each is typed."""

from collections.abc import Mapping
from typing import Any

from lmtrain.composition.command_line.unknown_words import leaf_keys, node_at
from lmtrain.composition.nodes.check import REPEATS
from lmtrain.composition.nodes.no_value import MISSING, no_value
from lmtrain.composition.run_config import KEYS, SCALARS


def require_given(values: Mapping[str, Any]) -> None:
    """Refuse the first setting without a value.

    Raises:
        ConfigurationError: There is one.
    """
    for name in sorted({*KEYS} - {*SCALARS, REPEATS}):
        missing = [key for key in leaf_keys(values[name], f"{name}.") if node_at(values, key) == MISSING]
        if missing:
            from lmtrain.accounting.options.parts import SourceFacts  # only to refuse
            from lmtrain.composition.nodes.facts import facts_of

            source = facts_of(values[name], SourceFacts) if name == SourceFacts.group else None
            raise no_value(missing[0], of_pairs=source is not None and source.has_pairs)
