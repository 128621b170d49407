"""A node of a config in its one form: amounts as numbers, and no setting equal to its constructor's default.

Its hash stays the same when a part gets a new setting, off by default. Loads no torch.
"""

from typing import Any

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.run.schema.source_signatures import default_settings


def canonical(value: Any, *, key: str) -> Any:
    """Return a composed or checked value, found under `key`, in that form; both come out alike."""
    if isinstance(value, dict):
        return _node(value)
    if isinstance(value, list):
        return [canonical(each, key=key) for each in value]
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return value
    try:
        return float(parse_quantity(value, key))
    except ConfigurationError:  # an ordinary word
        return str(value)


def _node(node: dict[str, Any]) -> dict[str, Any]:
    defaults = default_settings(str(node.get("_target_", "")))
    found = {name: canonical(value, key=name) for name, value in node.items()}
    return {
        name: value
        for name, value in found.items()
        if name not in defaults or canonical(defaults[name], key=name) != value
    }
