"""The one number that sets all sizes of a model, as nano's depth, for a size typed as other models have it."""

from collections.abc import Mapping
from typing import Any

from lmtrain.accounting.options.parts import ScalingFacts
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.run.schema.facts import facts_of


def by_its_knob(model: Mapping[str, Any], size: str, value: str) -> str | None:
    """Return a model's own word for a size of other models, as model.depth=12; None where it has no such knob."""
    facts = facts_of(model, ScalingFacts)
    if facts is None or size not in facts.sets:
        return None
    try:
        number = parse_quantity(value, size) / facts.sets[size]
    except ConfigurationError:
        return None
    return f"{facts.group}.{facts.carries_over}={max(1, round(number))}"
