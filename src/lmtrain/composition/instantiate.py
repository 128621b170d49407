"""The one place where a checked config node becomes an object."""

import functools
import inspect
from typing import Any

import hydra.utils
from hydra.errors import InstantiationException

from lmtrain.composition.check import LATE_FACTS, PARTIAL, TARGET
from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError


def instantiate(node: dict[str, Any], *, key: str, facts: dict[str, Any] | None = None, **more: Any) -> Any:
    """Build a checked node; a node with `_partial_: true` gives a callable that waits for the rest.

    `facts` are known only now (the run's context, its ranks, ...) and fill the parameters of those names; `more` is
    always passed.

    Raises:
        ConfigurationError: The constructor refused its arguments, or the node sets what is passed here.
    """
    _require_unset(node, {*more, *(LATE_FACTS & (facts or {}).keys())}, key=key)
    try:
        call = _plain(hydra.utils.instantiate({**node, PARTIAL: True}, _convert_="all"))
        names = inspect.signature(call).parameters
        late = {name: fact for name, fact in (facts or {}).items() if name in LATE_FACTS and name in names}
        filled = functools.partial(call, **late, **more)
        return filled if node.get(PARTIAL) and not more else filled()
    except InstantiationException as failure:
        raise _cause(failure, key=key, target=str(node[TARGET])) from failure


def _plain(built: Any) -> Any:
    """Return Hydra's partials as ordinary ones.

    Its own check their target anew at every call, which costs a schedule or a loss half a millisecond each time
    (hydra 1.3.8); the targets were checked before anything was built.
    """
    if not isinstance(built, functools.partial):
        return built
    keywords = {name: _plain(value) for name, value in built.keywords.items()}
    return functools.partial(built.func, *map(_plain, built.args), **keywords)


def _require_unset(node: dict[str, Any], passed: set[str], *, key: str) -> None:
    """Refuse settings that would be overwritten in silence."""
    for name in sorted(passed & node.keys()):
        raise ConfigurationError(f"{key}.{name}={node[name]} has no effect: the run itself decides it; leave it out.")


def _cause(failure: BaseException, *, key: str, target: str) -> BaseException:
    """Return our own error from inside Hydra's wrapping, or word one."""
    cause = failure
    while cause.__cause__ is not None and not isinstance(cause, LMTRAIN_ERRORS):
        cause = cause.__cause__
    if isinstance(cause, LMTRAIN_ERRORS):
        return cause
    return ConfigurationError(f"{key} ({target}) could not be built: {cause}")
