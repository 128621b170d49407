"""Parameters and annotated types of a callable, read once: a plan with advice asks for each a hundred times."""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, get_type_hints


@lru_cache(maxsize=1024)
def parameters_of(call: Callable[..., Any], *, are_evaluated: bool = False) -> Mapping[str, inspect.Parameter]:
    """Return a callable's parameters by name, annotations in quotes evaluated on demand."""
    return inspect.signature(call, eval_str=are_evaluated).parameters


@lru_cache(maxsize=1024)
def hints_of(call: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of a function's, or a class's constructor's, parameters by name."""
    return get_type_hints(call.__init__ if isinstance(call, type) else call)
