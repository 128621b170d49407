"""A composed config with a few more words typed, without composing it again.

For advice: each is planned first, and there may be many to try.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.run.compose.group_options import NODE, file_values
from lmtrain.run.run_config import RunConfig

# Settings with another's value by default, conf/trainer/default.yaml.
SWITCH: Final = {"true": True, "false": False, "null": None, "auto": "auto"}
NAMED: Final = re.compile(r"\$\{([\w.]+)\}")
FOLLOWERS: Final = {
    "cluster.devices_per_node": "trainer.devices",
    "cluster.num_nodes": "trainer.num_nodes",
}


def with_words(config: RunConfig, words: Sequence[str]) -> RunConfig:
    """Return the config with options chosen, numbers and switches set, and defaults following them."""
    values = dict(config.values)
    for word in _in_order(words):
        key, _, value = word.partition("=")
        if isinstance(values.get(key), bool):
            values[key] = value == "true"
        elif "." not in key:
            how_to_build = {name: held for name, held in values[key].items() if name.startswith("_")}
            values[key] = how_to_build | {name: _looked_up(held, values) for name, held in file_values(word).items()}
        else:
            is_switch = value in SWITCH
            values |= _with_value(values, key, SWITCH[value] if is_switch else parse_quantity(value, key))
    return config.changed(**values)


def _in_order(words: Sequence[str]) -> list[str]:
    """Return the words as they take effect: an option's values are those of the other groups at last."""
    chosen = {word.partition("=")[0] for word in words if "." not in word.partition("=")[0]}

    def turn(word: str) -> int:
        key = word.partition("=")[0]
        return 1 if "." not in key else 2 if key.partition(".")[0] in chosen else 0

    return sorted(words, key=turn)


def _looked_up(held: Any, values: Any) -> Any:
    """Return an option's setting, or the value of the other group's that it names."""
    named = NAMED.fullmatch(held) if isinstance(held, str) else None
    for name in named[1].split(".") if named else ():
        values = values[name]
    return values if named else held


def words_of_devices(config: RunConfig, num_devices: int) -> tuple[str, ...]:
    """Return the words for a number of devices, in whole nodes of the cluster's size, or of NODE for one device."""
    cluster, trainer = config.cluster, config.trainer
    a_node = cluster.devices_per_node
    if a_node == 1 or (num_devices > a_node and num_devices % a_node):
        a_node = NODE
    a_node = min(a_node, num_devices)
    wanted = {"devices_per_node": a_node, "num_nodes": num_devices // a_node}
    words = [f"cluster.{name}={number}" for name, number in wanted.items() if number != getattr(cluster, name)]
    if trainer.devices != cluster.devices_per_node:
        words.append(f"trainer.devices={a_node}")
    if trainer.num_nodes != cluster.num_nodes:
        words.append(f"trainer.num_nodes={num_devices // a_node}")
    return tuple(words)


def _with_value(values: Mapping[str, Any], key: str, value: float | str | None) -> dict[str, Any]:
    """Return the groups with a value, and with one that follows it."""
    group, _, name = key.partition(".")
    groups = {group: {**values[group], name: value}}
    if key in FOLLOWERS:
        followers, _, follower = FOLLOWERS[key].partition(".")
        held = values[followers]
        if held[follower] == values[group][name]:
            groups[followers] = {**held, follower: value}
    return groups
