"""Check a composed config before anything is allocated: the schema is each target's own signature.

Returns a copy with amounts written for people ("20M", "2h") as numbers.
"""

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
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
AMOUNT: Final = re.compile(r"\d")  # as one begins, and no word of a Literal
REPEATS: Final = "data"  # it holds other groups: theirs is the key to name, so it is looked at last
OF_AN_ARGUMENT: Final = Slot(())  # its kind is in a signature, not imported for a name; any package of lmtrain
LATE_FACTS = frozenset(
    {"context", "num_ranks", "compute_dtype", "tokens_per_step", "device_type", "stochastic_rounding"}
)
MISSING: Final = "???"
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
    """Check a node and all below it; `key` is its full dotted name, `slot` the kind it takes (None: by its key).

    Raises:
        ConfigurationError: A missing or unknown key, a forbidden target, or a value of the wrong type.
    """
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
            if name == PARTIAL and not isinstance(value, bool):
                raise ConfigurationError(f"{full_key}={value} is neither true nor false.")
            checked[name] = value
            continue
        if name not in parameters:
            settings = [known for known in parameters if known in node or _is_typed(parameters[known])]
            raise ConfigurationError(_unknown(full_key, name, value, settings))
        if isinstance(value, dict):
            value = _with_target(value, hints.get(name, Any), key=full_key)
        if isinstance(value, (dict, list)):
            value = check_node(
                value, key=full_key, allowed=allowed, slot=SLOTS.get(full_key) or slot_of(hints.get(name, Any))
            )
        checked[name] = check_value(value, hints.get(name, Any), key=full_key)
    _require_all(parameters, checked, key=key)
    return checked


def _is_typed(parameter: inspect.Parameter) -> bool:
    """Return whether a person sets it: neither the caller passes it, nor the run decides it."""
    is_called_with = parameter.kind is not inspect.Parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    return not is_called_with and parameter.name not in {"self", *LATE_FACTS}


def _with_target(node: dict[str, Any], annotation: Any, *, key: str) -> dict[str, Any]:
    """Name the class of a node begun on the command line, where only one is possible."""
    kinds = [kind for kind in _kinds(annotation) if isinstance(kind, type) and is_dataclass(kind)]
    if TARGET in node or not kinds:
        return node
    names = sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    if len(names) > 1:
        raise ConfigurationError(f"{key}={node} may be {' or '.join(names)}; set +{key}.{TARGET} to one of them.")
    return {TARGET: names[0], **node}


def no_value(key: str) -> ConfigurationError:
    """Return the refusal of a key that has no default."""
    example = EXAMPLES.get(key, f"{key}=...")
    return ConfigurationError(f"{key} has no value; set it on the command line: {example}")


def check_value(value: Any, annotation: Any, *, key: str) -> Any:
    """Return a value as its annotation wants it, with human amounts parsed by the key's unit.

    Raises:
        ConfigurationError: The value is missing ("???") or of another type.
    """
    if value == MISSING:
        raise no_value(key)
    kinds = _kinds(annotation)
    if isinstance(value, dict) and TARGET in value and not kinds <= PLAIN:
        return value  # an object, checked by its own signature
    takes_text = str in _alternatives(annotation)
    if isinstance(value, str) and kinds & {int, float} and not takes_text and (str not in kinds or AMOUNT.match(value)):
        number = parse_quantity(value, key)
        value = int(number) if float not in kinds and float(number).is_integer() else number
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        value = int(value)  # also beyond 2^63, pydantic's limit
    if type(value) is int and abs(value) < 2**53 and float in kinds and int not in kinds:
        value = float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and str in kinds and not kinds & {int, float}:
        value = str(value)
    if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
        raise ConfigurationError(_wrong_type(key, value, annotation))
    return value if _is_exactly(value, annotation) else _converted(value, annotation, key=key)


def _alternatives(annotation: Any) -> list[Any]:
    """Return the parts of a union, and Annotated's content."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _alternatives(part)]
    return _alternatives(typing.get_args(annotation)[0]) if origin is typing.Annotated else [annotation]


def _words(kind: Any) -> tuple[Any, ...]:
    """Return the words of a Literal, nothing for another type."""
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _kinds(annotation: Any) -> set[Any]:
    """Return the alternatives as types; a Literal counts by its words' type."""
    return {
        each for kind in _alternatives(annotation) for each in (map(type, _words(kind)) if _words(kind) else (kind,))
    }


def _is_exactly(value: Any, annotation: Any) -> bool:
    """Return whether a value is of a plain type as it stands, without any import."""

    def fits(kind: Any) -> bool:
        if isinstance(value, dict) and typing.get_origin(kind) in (dict, Mapping):
            of_keys, of_values = typing.get_args(kind)
            return all(_is_exactly(name, of_keys) and _is_exactly(one, of_values) for name, one in value.items())
        is_word = isinstance(value, str) and value in _words(kind)
        return is_word or kind is Any or (kind is type(value) and kind in PLAIN)

    return any(map(fits, _alternatives(annotation)))


def _converted(value: Any, annotation: Any, *, key: str) -> Any:
    """Return a value converted by pydantic; a plain list becomes a tuple without its import, a fifth of a plan."""
    if isinstance(value, list) and typing.get_origin(annotation) is tuple:
        kind, *rest = typing.get_args(annotation)
        if rest == [...] and all(_is_exactly(one, kind) for one in value):
            return tuple(value)
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticSchemaGenerationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
        converted = adapter.validate_python(value)
        return str(converted) if isinstance(converted, Path) else converted  # a job is kept as plain values
    except PydanticSchemaGenerationError:
        return value
    except ValidationError as problem:
        if _is_plain(annotation):
            raise ConfigurationError(_wrong_type(key, value, annotation)) from problem
        return value  # an object of the code's own


def _is_plain(annotation: Any) -> bool:
    """Return whether an annotation has values of plain types, or lists and mappings, that a file can hold."""

    def is_collection(kind: Any) -> bool:
        origin = typing.get_origin(kind)
        return origin in (list, tuple, dict) or (origin is Sequence and set(typing.get_args(kind)) <= PLAIN)

    kinds = _kinds(annotation)
    return bool(kinds & {int, float, str, bool, Path}) or any(map(is_collection, kinds))


def _require_all(parameters: Mapping[str, inspect.Parameter], given: dict[str, Any], *, key: str) -> None:
    if given.get(PARTIAL):
        return
    for name, parameter in parameters.items():
        is_needed = parameter.default is inspect.Parameter.empty and parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        )
        if is_needed and name not in given and name not in LATE_FACTS:
            msg = f"{key}.{name} is missing: {given[TARGET]} needs it; set {key}.{name}=..."
            raise ConfigurationError(msg)


def _unknown(full_key: str, name: str, value: Any, settings: Sequence[str]) -> str:
    has = ", ".join(settings) or "none"
    return f"{full_key}={value} is not a setting of this node; it has {has}.{suggest(name, settings)}"


def _wrong_type(key: str, value: Any, annotation: Any) -> str:
    kinds, parts = _kinds(annotation), [kind for kind in _alternatives(annotation) if kind is not type(None)]
    if all(map(_words, parts)):
        choices = [str(word) for part in parts for word in _words(part)]
        null = ", or null" if type(None) in kinds else ""
        return f"{key}={value} must be one of {', '.join(choices)}{null}.{suggest(str(value), choices)}"
    if isinstance(value, float) and not value.is_integer() and int in kinds and float not in kinds:
        nearest = max(1, round(value)) if math.isfinite(value) and value > 0 else None
        return f"{key}={value} is not a whole number{f'. Did you mean {nearest}?' if nearest else '.'}"
    is_one = isinstance(value, str | int | float) and not isinstance(value, bool)
    if is_one and any(typing.get_origin(kind) in (list, Sequence) for kind in kinds):
        return f"{key}={value} must be a list. Did you mean '{key}=[{value}]'?"
    return f"{key}={value!r} is not of type {' or '.join(map(_type_words, _alternatives(annotation)))}."


def _type_words(kind: Any) -> str:
    """Write a type as on a command line: null for None, the words of a Literal."""
    if words := _words(kind):
        return " or ".join(map(str, words))
    if typing.get_origin(kind) is Sequence:
        return "list"
    if kind is type(None):
        return "null"
    return kind.__name__ if type(kind) is type else str(kind).replace("typing.", "")
