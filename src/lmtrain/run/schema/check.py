"""Check a composed config before anything is allocated: the schema is each target's own signature.

Returns a copy with amounts written for people ("20M", "2h") as numbers.
"""

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.run.schema.signatures import hints_of, parameters_of
from lmtrain.run.schema.targets import SLOTS, Slot, find_target, require_allowed, slot_at, slot_of

TARGET, PARTIAL = "_target_", "_partial_"
PLAIN = frozenset({int, float, str, bool, type(None)})
TYPE_WORDS: Final[Mapping[Any, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    type(None): "null",
    **dict.fromkeys((list, tuple, Sequence), "a list"),
    **dict.fromkeys((dict, Mapping), "a mapping"),
}
REPEATS: Final = "data"  # it holds other groups: theirs is the key to name, so it is looked at last
OF_AN_ARGUMENT: Final = Slot(())  # its kind is in a signature, not imported for a name; any package of lmtrain
LATE_FACTS = frozenset(
    {"context", "num_ranks", "compute_dtype", "tokens_per_step", "device_type", "stochastic_rounding"}
)
MISSING: Final = "???"
VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# As a shell takes them; of a file or name of the person's own, an example.
EXAMPLES: Final = {
    "source.paths": "'source.paths=[my/notes]'",
    "source.name": "source.name=roneneldan/TinyStories",
    "tokenizer.name": "tokenizer.name=gpt2",
    "data.folder.format": "data.folder.format=nanogpt",
    "data.folder.train": "'data.folder.train=[train.bin]'",
}


def refuse_foreign(values: Mapping[str, Any], *, allowed: Sequence[str]) -> None:
    """Look at every name of a composed config's code, before any is imported: for every command, first of all.

    Words of Hydra's that would call with more than settings are refused too.
    """
    for name in (*sorted(values.keys() - {REPEATS}), REPEATS):
        _look(values.get(name), key=name, allowed=allowed, slot=None)


def _look(node: Any, *, key: str, allowed: Sequence[str], slot: Slot | None) -> None:
    """Look at a node and all below it; `slot` is the kind it takes, None: by its key."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            _look(item, key=f"{key}.{index}", allowed=allowed, slot=slot)
    if not isinstance(node, dict):
        return
    if TARGET in node:
        require_allowed(str(node[TARGET]), key=key, allowed=allowed, slot=slot or slot_at(key))
        _refuse_words_of_hydra(node, key=key)
    for name, value in node.items():
        below = f"{key}.{name}"
        inner = SLOTS.get(below, OF_AN_ARGUMENT) if TARGET in node else slot
        _look(value, key=below, allowed=allowed, slot=inner)


def _refuse_words_of_hydra(node: Mapping[str, Any], *, key: str) -> None:
    for name in node:
        if str(name).startswith("_") and name not in (TARGET, PARTIAL):
            raise ConfigurationError(
                f"{key}.{name}={node[name]} is not a setting of this node: settings go by their names; leave it out."
            )


def check_node(node: Any, *, key: str, allowed: Sequence[str] = (), slot: Slot | None = None) -> Any:
    """Check a node and all below it; `key` is its full dotted name, `slot` the kind it takes (None: by its key)."""
    below = partial(check_node, allowed=allowed, slot=slot)
    if isinstance(node, list):
        return [below(item, key=f"{key}.{index}") for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    if TARGET not in node:
        return {name: below(value, key=f"{key}.{name}") for name, value in node.items()}
    target = find_target(str(node[TARGET]), key=key, allowed=allowed, slot=slot)
    return check_call(target, node, key=key, allowed=allowed)


def check_call(target: Callable[..., Any], node: dict[str, Any], *, key: str, allowed: Sequence[str]) -> dict[str, Any]:
    """Check one node's arguments against its target's signature, and each value against its annotation."""
    parameters, hints = parameters_of(target), hints_of(target)
    checked: dict[str, Any] = {}
    for name, value in node.items():
        full_key = f"{key}.{name}"
        if name in (TARGET, PARTIAL):
            checked[name] = check_value(value, bool if name == PARTIAL else str, key=full_key)
            continue
        if name not in parameters:
            settings = [known for known in parameters if known in node or _is_typed(parameters[known])]
            raise ConfigurationError(_unknown(full_key, name, value, settings))
        if isinstance(value, dict):
            value = _with_target(value, hints.get(name, Any))
        if isinstance(value, (dict, list)):
            value = check_node(
                value, key=full_key, allowed=allowed, slot=SLOTS.get(full_key) or slot_of(hints.get(name, Any))
            )
        checked[name] = check_value(value, hints.get(name, Any), key=full_key)
    for name, parameter in parameters.items():
        is_needed = parameter.default is parameter.empty and parameter.kind not in VARIABLE
        if is_needed and name not in checked and name not in LATE_FACTS and not checked.get(PARTIAL):
            raise ConfigurationError(f"{key}.{name}: must be given for {node[TARGET]}; add {key}.{name}=VALUE.")
    return checked


def _is_typed(parameter: inspect.Parameter) -> bool:
    """Return whether a person sets it: neither the caller passes it, nor the run decides it."""
    is_called_with = parameter.kind is not inspect.Parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    return not is_called_with and parameter.name not in {"self", *LATE_FACTS}


def _with_target(node: dict[str, Any], annotation: Any) -> dict[str, Any]:
    """Name the class of a node begun on the command line, where only one is possible."""
    kinds = [kind for kind in _alternatives(annotation) if isinstance(kind, type) and is_dataclass(kind)]
    if TARGET in node or len(kinds) != 1:
        return node
    return {TARGET: f"{kinds[0].__module__}.{kinds[0].__qualname__}", **node}


def no_value(key: str) -> ConfigurationError:
    """Return the refusal of a key that has no default."""
    return ConfigurationError(f"{key}: must be given; add {EXAMPLES.get(key, f'{key}=VALUE')}.")


def check_value(value: Any, annotation: Any, *, key: str) -> Any:
    """Return a value as its annotation wants it, with human amounts parsed by the key's unit."""
    if value == MISSING:
        raise no_value(key)
    try:
        return _converted(value, annotation, key=key)
    except TypeError as problem:
        raise ConfigurationError(_wrong_type(key, value, annotation)) from problem


def _converted(value: Any, annotation: Any, *, key: str) -> Any:
    """Return a value as a type wants it, or raise TypeError; pydantic's import would be a fifth of a plan's time."""
    parts = _alternatives(annotation)
    if len(parts) > 1:
        exact = [part for part in parts if type(value) is part or value in _words(part)]
        for part in (*exact, *parts):
            with suppress(TypeError, ConfigurationError):
                return _converted(value, part, key=key)
        raise TypeError
    (kind,) = parts
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (int, float):
        return _number(value, kind, key=key)
    if kind is bool and value in (0, 1):
        return bool(value)
    if kind in (str, Path) and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)  # also a path: a job is kept as plain values
    if isinstance(value, (list, tuple)) and origin in (list, tuple, Sequence):
        kinds = arguments if origin is tuple and arguments[-1] is not ... else (arguments[0],) * len(value)
        if len(kinds) == len(value):
            items = [_converted(item, one, key=key) for item, one in zip(value, kinds, strict=True)]
            return tuple(items) if origin is tuple else items
    if isinstance(value, dict) and origin in (dict, Mapping):
        return {str(name): _converted(one, arguments[1], key=f"{key}.{name}") for name, one in value.items()}
    is_plain = kind in (*PLAIN, Path) or origin in (list, tuple, Sequence, dict, Mapping, typing.Literal)
    is_object = isinstance(kind, type) and kind not in (Any, object) and not isinstance(value, (dict, list))
    if value in _words(kind) or (type(value) is kind and kind in PLAIN) or not (is_plain or is_object):
        return value  # a word, None, anything, or an object checked by its own signature
    raise TypeError


def _number(value: Any, kind: type[int] | type[float], *, key: str) -> float:
    if isinstance(value, str):
        value = parse_quantity(value, key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind is int and value % 1):
        raise TypeError
    return kind(value)


def _alternatives(annotation: Any) -> list[Any]:
    """Return the parts of a union, and Annotated's content."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _alternatives(part)]
    return _alternatives(typing.get_args(annotation)[0]) if origin is typing.Annotated else [annotation]


def _words(kind: Any) -> tuple[Any, ...]:
    """Return the words of a Literal, nothing for another type."""
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _unknown(full_key: str, name: str, value: Any, settings: Sequence[str]) -> str:
    has = ", ".join(settings) or "none"
    return f"{full_key}={value} is not a setting of this node; it has {has}.{suggest(name, settings)}"


def _wrong_type(key: str, value: Any, annotation: Any) -> str:
    parts = _alternatives(annotation)
    words = [str(word) for part in parts for word in _words(part)]
    rules = [TYPE_WORDS.get(typing.get_origin(kind) or kind) or _name(kind) for kind in parts if not _words(kind)]
    one = [f"one of {', '.join(words)}" if len(words) > 1 else words[0]] if words else []
    rule = " or ".join([*one, *dict.fromkeys(rules)])
    fix = suggest(str(value), words)
    if isinstance(value, float) and rule.startswith("a whole number") and 0 < value < math.inf:
        fix = f" Did you mean {max(1, round(value))}?"
    elif isinstance(value, (str, int, float)) and "a list" in rules:
        fix = f" Did you mean '{key}=[{value}]'?"
    return f"{key}: must be {rule}, got {'null' if value is None else value}.{fix}"


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
