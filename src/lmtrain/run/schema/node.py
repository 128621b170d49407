"""One chosen option of a config: its target, its settings, and their object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmtrain.run.schema.canonical import canonical
from lmtrain.run.schema.check import TARGET, check_node
from lmtrain.run.schema.instantiate import instantiate
from lmtrain.run.schema.targets import word_of


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
        """Tell whether a setting is given."""
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
        """Return the node with every value checked against its target's signature; `allowed` are foreign packages.

        Raises:
            ConfigurationError: The first error.
        """
        return replace(self, values=check_node(dict(self.values), key=self.key, allowed=allowed))

    def build(self, *, facts: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Make the object of a checked node; `facts` and `more` as `instantiate` takes them.

        Raises:
            ConfigurationError: The constructor refused its arguments, or the node sets one passed here.
        """
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
