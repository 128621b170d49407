"""An option's facts about itself, read from the source of its code without loading torch.

The code at MODULE.NAME is described by the constant NAME_FACTS of the same module, with a class's name in snake case:
LigerCrossEntropy by LIGER_CROSS_ENTROPY_FACTS. Where facts depend on the option's settings, a function name_facts
returns them; it takes those that it asks for. Of the module only these and its imports of arithmetic are run.
"""

import __future__

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final, Protocol, TypeVar

from lmtrain.errors import ConfigurationError
from lmtrain.run.schema.check import check_value
from lmtrain.run.schema.signatures import OURS, parameters_of, statements_of

SUFFIX: Final = "_facts"
ARITHMETIC: Final = "lmtrain.accounting."
SHORT_STANDARD: Final = ("math", "typing", "collections.abc", "dataclasses")


class Facts(Protocol):
    """The facts of an option of a group."""

    group: ClassVar[str]


F = TypeVar("F", bound=Facts)


def facts_of(
    node: Mapping[str, Any], kind: type[F], *, allowed: Sequence[str] = (), key: str = "", **place: Any
) -> F | None:
    """Return the facts of a node's option, None where it states none; `place` is not among its settings.

    `allowed` are the packages allowed besides ours. With a `key`, the node's dotted name, settings are checked first.

    Raises:
        ConfigurationError: It says something else, or needs more than arithmetic to say it.
    """
    target = str(node.get("_target_", ""))
    module, _, name = target.rpartition(".")
    if not module or not target.startswith((*OURS, *allowed)):
        return None
    try:
        found = _described(module).get(_snake_case(name))
        if callable(found):
            taken = parameters_of(found, are_evaluated=bool(key))
            given = {name: value for name, value in {**node, **place}.items() if name in taken}
            if key:
                given = {name: check_value(given[name], taken[name].annotation, key=f"{key}.{name}") for name in given}
            found = found(**given)
    except (NameError, TypeError) as failure:
        raise ConfigurationError(
            f"the facts of {target} fail: {failure}; they take its settings, and imports of {ARITHMETIC}* alone."
        ) from failure
    if found is not None and not isinstance(found, kind):
        raise ConfigurationError(
            f"the facts of {target} are {type(found).__name__}; {kind.group} takes {kind.__name__}."
        )
    return found


def require_facts(node: Mapping[str, Any], kind: type[F], *, allowed: Sequence[str] = (), **place: Any) -> F:
    """Return the facts of a node's option."""
    found = facts_of(node, kind, allowed=allowed, **place)
    if found is None:
        from lmtrain.run.schema.targets import require_allowed, slot_at  # where something is wrong alone

        target = str(node["_target_"])
        require_allowed(target, key=kind.group, allowed=allowed, slot=slot_at(kind.group))
        module, _, name = target.rpartition(".")
        what = getattr(kind, "saying", "what it is")
        raise ConfigurationError(
            f"{kind.group}._target_={target} does not say {what}, which a plan counts on; write "
            f"{_snake_case(name).upper()}_FACTS = {kind.__name__}(...) next to it in {module.replace('.', '/')}.py."
        )
    return found


@cache
def _described(module: str) -> dict[str, Facts | Callable[..., Any]]:
    """Run the facts' part of a module's source; return its constants and functions by the names of their options."""
    run = [statement for statement in statements_of(module, where=_may_say) if _says(statement)]
    tree, flags = ast.Module(body=run, type_ignores=[]), __future__.annotations.compiler_flag
    code = compile(tree, f"{module} ({SUFFIX})", "exec", flags=flags, dont_inherit=True)
    names: dict[str, Any] = {"__name__": module}
    exec(code, names)  # noqa: S102  # of packages imported whole by a run
    return {name.lower().removesuffix(SUFFIX): found for name, found in names.items() if _is_facts(name)}


def _may_say(text: str) -> bool:
    first = text.partition("(")[0]
    return first.startswith("from ") or SUFFIX in first.lower()


def _says(statement: ast.stmt) -> bool:
    match statement:
        case ast.ImportFrom(module=str(module)):
            return module.startswith(ARITHMETIC) or module in SHORT_STANDARD
        case ast.FunctionDef(name=name):
            return _is_facts(name)
        case ast.AnnAssign(target=ast.Name(id=name)):
            return _is_facts(name)
        case ast.Assign(targets=targets):
            return all(isinstance(target, ast.Name) and _is_facts(target.id) for target in targets)
        case _:
            return False


def _is_facts(name: str) -> bool:
    return name.lower().endswith(SUFFIX)


@cache
def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
