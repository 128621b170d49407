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
        ConfigurationError: The constructor refused its arguments.
    """
    try:
        call = hydra.utils.instantiate({**node, PARTIAL: True}, _convert_="all")
        names = inspect.signature(call).parameters
        late = {name: fact for name, fact in (facts or {}).items() if name in LATE_FACTS and name in names}
        filled = functools.partial(call, **late, **more)
        return filled if node.get(PARTIAL) and not more else filled()
    except InstantiationException as failure:
        raise _cause(failure, key=key, target=str(node[TARGET])) from failure


def _cause(failure: BaseException, *, key: str, target: str) -> BaseException:
    """Return our own error from inside Hydra's wrapping, or word one."""
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, LMTRAIN_ERRORS):
            return cause
        last, cause = cause, cause.__cause__
        if cause is None:
            return ConfigurationError(f"{key} ({target}) could not be built: {last}")
    raise AssertionError
