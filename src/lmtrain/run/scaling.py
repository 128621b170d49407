"""The last step of composing: settings derived from the model's size, by the rule of `scaling`.

A rule is a function of the composed config and the typed keys; it returns settings by their keys. A typed value, or an
option's, holds at the rule's base; the resulting config holds the derived ones, and a record of both under `scaling`,
so that a scaled config stays as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.accounting.scaling import UNSCALED, Scaling
from lmtrain.run.schema.check import PARTIAL, TARGET, check_node
from lmtrain.run.schema.node import instantiate, node_at
from lmtrain.run.schema.signatures import default_settings
from lmtrain.run.schema.targets import word_of

Config = dict[str, Any]
Rule = Callable[[Config, frozenset[str]], dict[str, float]]
RECORD: Final = f"{Scaling.__module__}.{Scaling.__qualname__}"


def unscaled(config: Config, typed: frozenset[str]) -> dict[str, float]:
    """Derive nothing."""
    del config, typed
    return {}


def scaled(config: Config, overrides: Sequence[str], *, allowed: Sequence[str] = ()) -> Config:
    """Return the config with its rule of scaling applied; a config without one, or scaled before, as it is."""
    node = config.get("scaling")
    if node is None or node.get(TARGET) in (UNSCALED, RECORD):
        return config
    checked = check_node(node, key="scaling", allowed=allowed)
    rule: Rule = instantiate(checked, key="scaling")
    derived = rule(config, frozenset(word.lstrip("+~").partition("=")[0] for word in overrides))
    record = Scaling(
        rule=word_of(checked),
        options={name: value for name, value in checked.items() if name not in (TARGET, PARTIAL)},
        base={key: _base(config, key) for key in derived},
        derived=derived,
    )
    config = {**config, "scaling": {TARGET: RECORD, **asdict(record)}}
    for key, value in derived.items():
        config = _with(config, key.split("."), value)
    return config


def _base(config: Config, key: str) -> Any:
    group, _, name = key.partition(".")
    found = node_at(config, key)
    if found is None:
        return default_settings(str(config[group].get(TARGET))).get(name)
    return parse_quantity(found, key) if isinstance(found, str) else found  # 1Mi as a person types it


def scaling_of(config: Config) -> Scaling | None:
    """Return the record of how a config was scaled, None where it was not."""
    node = config.get("scaling", {})
    return instantiate(node, key="scaling") if node.get(TARGET) == RECORD else None


def _with(node: Config | None, path: list[str], value: Any) -> Config:
    name, *rest = path
    node = node or {}
    return {**node, name: _with(node.get(name), rest, value) if rest else value}
