"""The one place where a checked config node becomes an object."""

import functools
from typing import Any

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError
from lmtrain.run.schema.check import LATE_FACTS, PARTIAL, TARGET
from lmtrain.run.schema.parameters import parameters_of
from lmtrain.run.schema.targets import import_target


def instantiate(node: dict[str, Any], *, key: str, facts: dict[str, Any] | None = None, **more: Any) -> Any:
    """Build a checked node; a node with `_partial_: true` gives a callable for the rest.

    `facts` are known only now (the run's context, its ranks, ...) and fill the parameters of those names; `more` is
    always passed.

    Raises:
        ConfigurationError: The constructor refused its arguments, or the node sets one passed here.
    """
    _require_unset(node, {*more, *(LATE_FACTS & (facts or {}).keys())}, key=key)
    try:
        call = _partial(node)
    except LMTRAIN_ERRORS:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ImportError, RuntimeError, OSError) as failure:
        raise ConfigurationError(f"{key} ({node[TARGET]}) could not be built: {failure}") from failure
    names = parameters_of(call.func)
    late = {name: fact for name, fact in (facts or {}).items() if name in LATE_FACTS and name in names}
    filled = functools.partial(call, **late, **more)
    return filled if node.get(PARTIAL) and not more else filled()


def _partial(node: dict[str, Any]) -> functools.partial[Any]:
    """Return a node's target with its settings, the nodes among them built."""
    settings = {name: _built(value) for name, value in node.items() if name not in (TARGET, PARTIAL)}
    return functools.partial(import_target(node[TARGET]), **settings)


def _built(value: Any) -> Any:
    if isinstance(value, list):
        return [_built(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TARGET not in value:
        return {name: _built(item) for name, item in value.items()}
    call = _partial(value)
    return call if value.get(PARTIAL) else call()


def _require_unset(node: dict[str, Any], passed: set[str], *, key: str) -> None:
    """Refuse settings silently overwritten by the caller."""
    for name in sorted(passed & node.keys()):
        raise ConfigurationError(f"{key}.{name}={node[name]} has no effect: the run itself decides it; leave it out.")
