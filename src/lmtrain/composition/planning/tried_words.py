"""A composed config with a few words typed beside those that made it, without composing it again.

For advice: what is advised is planned first, and there may be many things to try.
"""

from collections.abc import Sequence
from typing import Any, Final

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.accounting.training_plan.fit import NODE

FULLY_SHARDED: Final = "lmtrain.parallel.fsdp.fsdp"
EVERY_BLOCK: Final = "lmtrain.parallel.activation_checkpoint.every_block"
OPTIONS: Final = {"strategy=fsdp": FULLY_SHARDED, "recompute=every_block": EVERY_BLOCK}
# Settings that are another's by default, conf/trainer/default.yaml.
FOLLOWERS: Final = {
    "cluster.devices_per_node": "trainer.devices",
    "cluster.num_nodes": "trainer.num_nodes",
}


def with_words(config: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the config with options of OPTIONS chosen and numbers set, and what follows them by default."""
    for word in words:
        key, _, value = word.partition("=")
        if word in OPTIONS:
            how_to_build = {name: held for name, held in config[key].items() if name.startswith("_")}
            config = {**config, key: how_to_build | {"_target_": OPTIONS[word]}}
        else:
            config = _with_number(config, key, parse_quantity(value, key))
    return config


def words_of_devices(config: dict[str, Any], num_devices: int) -> tuple[str, ...]:
    """Return the words for so many devices, in whole nodes of the cluster's size or, of a single device, of NODE."""
    cluster, trainer = config["cluster"], config["trainer"]
    a_node = int(cluster["devices_per_node"])
    if a_node == 1 or (num_devices > a_node and num_devices % a_node):
        a_node = NODE
    a_node = min(a_node, num_devices)
    wanted = {"devices_per_node": a_node, "num_nodes": num_devices // a_node}
    words = [f"cluster.{name}={number}" for name, number in wanted.items() if number != cluster[name]]
    if trainer["devices"] != cluster["devices_per_node"]:
        words.append(f"trainer.devices={a_node}")
    if trainer["num_nodes"] != cluster["num_nodes"]:
        words.append(f"trainer.num_nodes={num_devices // a_node}")
    return tuple(words)


def _with_number(config: dict[str, Any], key: str, number: float) -> dict[str, Any]:
    group, _, name = key.partition(".")
    changed = {**config, group: {**config[group], name: number}}
    if key in FOLLOWERS:
        followers, _, follower = FOLLOWERS[key].partition(".")
        if config[followers][follower] == config[group][name]:
            return _with_number(changed, FOLLOWERS[key], number)
    return changed
