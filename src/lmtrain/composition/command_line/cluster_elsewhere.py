"""Numbers of devices and nodes beside a named cluster, which the Trainer follows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lmtrain.composition.command_line.called_elsewhere import Equivalent, needless, options_of, values_of
from lmtrain.composition.command_line.group_options import file_values

DEVICES: Final = "trainer.devices="
NODES: Final = "trainer.num_nodes="


def on_cluster(meant: Equivalent, words: Sequence[str]) -> Equivalent:
    """Return an answer with the keys of the cluster that a command names, the same answer without one."""
    typed = values_of(words)
    option = typed.get("cluster", "")
    if option not in options_of("cluster"):
        return meant
    a_node = int(typed.get("cluster.devices_per_node") or file_values(f"cluster={option}")["devices_per_node"])
    changed = [_of_cluster(word, a_node) for word in meant.words]
    kept = tuple(word for word in changed if word)
    if meant.words and not kept:
        return needless(f"a node of cluster={option} has {a_node} devices")
    implied = [_of_cluster(word, a_node) for word in meant.implied if not _is_within(word, a_node)]
    return replace(meant, words=kept, implied=tuple(word for word in implied if word))


def _of_cluster(word: str, a_node: int) -> str:
    """Return a word in the cluster's keys, "" for the very devices of one node."""
    if word.startswith(NODES):
        return f"cluster.num_nodes={word.removeprefix(NODES)}"
    number = word.removeprefix(DEVICES)
    if number == word:
        return word
    if number == str(a_node):
        return ""
    is_of_nodes = number.isdigit() and a_node > 1 and int(number) > a_node and int(number) % a_node == 0
    return f"cluster.num_nodes={int(number) // a_node}" if is_of_nodes else f"cluster.devices_per_node={number}"


def _is_within(word: str, a_node: int) -> bool:
    number = word.removeprefix(DEVICES)
    return number != word and number.isdigit() and int(number) <= a_node
