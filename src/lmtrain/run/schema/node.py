"""One chosen option of a config: its target, its settings, its object, and its form for hashes."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError
from lmtrain.run.schema.check import LATE_FACTS, PARTIAL, TARGET, check_node
from lmtrain.run.schema.signatures import default_settings, parameters_of
from lmtrain.run.schema.targets import import_target, word_of


@dataclass(frozen=True)
class Node:
    """An option under its dotted key; `values` are its settings with `_target_` and `_partial_`, nodes among them."""

    key: str
    values: Mapping[str, Any]

    @property
    def target(self) -> str:
        """Return the dotted name of its class or function; empty for plain settings."""
        return str(self.values.get(TARGET, ""))

    @property
    def word(self) -> str:
        """Return the last part of the target."""
        return word_of(self.values)

    def __contains__(self, name: str) -> bool:
        """Return whether a setting is given."""
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting."""
        return self.values.get(name, default)

    def node(self, name: str) -> "Node | None":
        """Return a setting as a node, None where it is not one."""
        value = self.values.get(name)
        return Node(f"{self.key}.{name}", value) if isinstance(value, dict) else None

    def changed(self, **settings: Any) -> "Node":
        """Return the same option with other settings."""
        return replace(self, values={**self.values, **settings})

    def without(self, *names: str) -> "Node":
        """Return the same option without some settings."""
        return replace(self, values={name: value for name, value in self.values.items() if name not in names})

    def checked(self, allowed: Sequence[str] = ()) -> "Node":
        """Return the node with every value checked against its target's signature; `allowed` are foreign packages."""
        return replace(self, values=check_node(dict(self.values), key=self.key, allowed=allowed))

    def build(self, *, facts: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Make the object of a checked node; `facts` and `more` as `instantiate` takes them."""
        return instantiate(dict(self.values), key=self.key, facts=dict(facts or {}), **more)

    def canonical(self) -> Any:
        """Return the values in the form for hashes."""
        return canonical(dict(self.values), key=self.key)


def node_at(config: Any, path: str) -> Any:
    """Return the value at a dotted path, None where there is none; the config itself for an empty path."""
    for part in path.split(".") if path else []:
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def leaf_keys(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return every dotted key of a config, groups included."""
    keys: list[str] = []
    for name, value in config.items():
        if str(name).startswith("_"):  # a number where a setting maps from numbers
            continue
        keys.append(f"{prefix}{name}")
        if isinstance(value, dict):
            keys += leaf_keys(value, f"{prefix}{name}.")
    return keys


def instantiate(node: dict[str, Any], *, key: str, facts: dict[str, Any] | None = None, **more: Any) -> Any:
    """Build a checked node; a node with `_partial_: true` gives a callable for the rest.

    `facts` are known only now (the run's context, its ranks, ...) and fill the parameters of those names; `more` is
    always passed.

    Raises:
        ConfigurationError: The constructor refused its arguments, or the node sets one passed here.
    """
    for name in sorted({*more, *(LATE_FACTS & (facts or {}).keys())} & node.keys()):
        raise ConfigurationError(f"{key}.{name}={node[name]} has no effect: the run itself decides it; leave it out.")
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


def canonical(value: Any, *, key: str) -> Any:
    """Return a composed or checked value, found under `key`, in that form; both come out alike."""
    if isinstance(value, dict):
        defaults = default_settings(str(value.get("_target_", "")))
        found = {name: canonical(each, key=name) for name, each in value.items()}
        return {
            name: each
            for name, each in found.items()
            if name not in defaults or canonical(defaults[name], key=name) != each
        }
    if isinstance(value, list):
        return [canonical(each, key=key) for each in value]
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return value
    try:
        return float(parse_quantity(value, key))
    except ConfigurationError:  # an ordinary word
        return str(value)
