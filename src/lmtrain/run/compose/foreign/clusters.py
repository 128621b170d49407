"""Numbers of devices and nodes: of a node or of all by program, and beside a named cluster, which the Trainer follows.

`--nproc_per_node` of torchrun counts those of a node, `--num_processes` of accelerate those of all nodes. `gpus` is
either: of a node as in Lightning, unless no node of the cluster has so many.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from lmtrain.accounting.quantities import parse_whole
from lmtrain.run.compose.foreign.batches import TypedBatch
from lmtrain.run.compose.foreign.table import Equivalent, needless, options_of, values_of
from lmtrain.run.compose.group_options import file_values

DEVICES: Final = "trainer.devices="
NODES: Final = "trainer.num_nodes="
INDICES: Final = re.compile(r"\[?\d+(?:,\d+)+\]?")  # of devices, as Lightning takes them


def devices_of_all_nodes(value: str, typed: Mapping[str, str]) -> Equivalent:
    """Return the devices of a node for a number of all nodes."""
    number, nodes = parse_whole(value, value), _num_nodes(typed)
    if nodes == 1:
        return Equivalent((f"{DEVICES}{number}",))
    return Equivalent((f"{DEVICES}{max(1, number // nodes)}",), f"of {number} devices on {nodes} nodes")


def devices_of_some(value: str, typed: Mapping[str, str]) -> Equivalent:
    """Return the devices of a node for a number of a node or, where no node of the cluster has so many, of all."""
    if INDICES.fullmatch(value):
        which = value.strip("[]")
        return Equivalent(
            (f"{DEVICES}{which.count(',') + 1}",), f"CUDA_VISIBLE_DEVICES={which} before the command chooses them"
        )
    number, nodes, a_node = parse_whole(value, value), _num_nodes(typed), _devices_of_a_node(typed)
    if nodes == 1:
        return Equivalent((f"{DEVICES}{number}",))
    if a_node and number > a_node and number % nodes == 0:
        return devices_of_all_nodes(value, typed)
    return Equivalent((f"{DEVICES}{number}",), f"of each of {nodes} nodes")


def _num_nodes(typed: Mapping[str, str]) -> int:
    return TypedBatch(typed).number("trainer.num_nodes") or TypedBatch(typed).number("cluster.num_nodes") or 1


def _devices_of_a_node(typed: Mapping[str, str]) -> int | None:
    """Return the devices of a node of the cluster that a command names, None without one."""
    option = typed.get("cluster", "")
    if option not in options_of("cluster"):
        return None
    return int(typed.get("cluster.devices_per_node") or file_values(f"cluster={option}")["devices_per_node"])


def on_cluster(meant: Equivalent, words: Sequence[str]) -> Equivalent:
    """Return an answer with the keys of the cluster that a command names, the same answer without one."""
    typed = values_of(words)
    a_node, has_nodes = _devices_of_a_node(typed), _num_nodes(typed) > 1
    if a_node is None:
        return meant
    changed = [_of_cluster(word, a_node, has_nodes=has_nodes) for word in meant.words]
    kept = tuple(word for word in changed if word)
    if meant.words and not kept:
        return needless(f"a node of cluster={typed['cluster']} has {a_node} devices")
    implied = [_of_cluster(word, a_node, has_nodes=has_nodes) for word in meant.implied if not _is_within(word, a_node)]
    return replace(meant, words=kept, implied=tuple(word for word in implied if word))


def of_nodes(meant: Equivalent) -> Equivalent:
    """Return an answer with the cluster's keys for numbers of devices and nodes, as a launch takes them."""
    devices, nodes = "cluster.devices_per_node=", "cluster.num_nodes="
    words, implied = (
        tuple(word.replace(DEVICES, devices).replace(NODES, nodes) for word in each)
        for each in (meant.words, meant.implied)
    )
    return replace(meant, words=words, implied=implied)


def _of_cluster(word: str, a_node: int, *, has_nodes: bool) -> str:
    """Return a word in the cluster's keys, "" for the very devices of one node."""
    if word.startswith(NODES):
        return f"cluster.num_nodes={word.removeprefix(NODES)}"
    number = word.removeprefix(DEVICES)
    if number == word:
        return word
    if number == str(a_node):
        return ""
    is_of_nodes = number.isdigit() and 1 < a_node < int(number) and int(number) % a_node == 0 and not has_nodes
    return f"cluster.num_nodes={int(number) // a_node}" if is_of_nodes else f"cluster.devices_per_node={number}"


def _is_within(word: str, a_node: int) -> bool:
    number = word.removeprefix(DEVICES)
    return number != word and number.isdigit() and int(number) <= a_node
