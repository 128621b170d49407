"""Refuse foreign code in a composed config by its names alone: first of all in every command, with the same words.

Nothing named is imported. A command that builds nothing, as a plan, refuses what a run would.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmtrain.composition.nodes.check import PARTIAL, TARGET
from lmtrain.composition.nodes.slots import SLOTS, Slot, slot_at
from lmtrain.composition.nodes.targets import require_allowed
from lmtrain.errors import ConfigurationError

REPEATS: Final = "data"  # it holds other groups: theirs is the key to name, so it is looked at last
OF_AN_ARGUMENT: Final = Slot(())  # its kind is in a signature, not imported here; its packages are all of ours


def refuse_foreign(values: Mapping[str, Any], *, allowed: Sequence[str]) -> None:
    """Look at every target of a composed config, and for words of Hydra's that would call with more than settings.

    Raises:
        ConfigurationError: The first target outside the allow-list, or the first such word.
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
