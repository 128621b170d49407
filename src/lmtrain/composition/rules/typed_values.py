"""Refuse what a person typed and cannot be, as far as that is known without torch, which takes seconds to import.

Everything is checked again, and more, before anything is allocated; here it is only told sooner.
"""

from collections.abc import Sequence
from typing import Any, Final

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.budgets import Budget, limits_of
from lmtrain.composition.command_line.unknown_words import node_at
from lmtrain.composition.nodes.check import TARGET, check_node, check_value
from lmtrain.composition.nodes.instantiate import instantiate
from lmtrain.composition.nodes.source_signatures import setting_types
from lmtrain.composition.rules.optimizer import require_settings
from lmtrain.models.dimensions import REQUIRED, check_positive, check_possible

WITHOUT_TORCH: Final = ("run", "batch", "budget", "cluster")  # what they build is light


def refuse_typed(config: dict[str, Any], typed: Sequence[str], *, allowed: Sequence[str]) -> None:
    """Look at the typed values of a composed config.

    Raises:
        ConfigurationError: The first that is wrong.
    """
    keys = [word.lstrip("+").partition("=")[0] for word in typed if "=" in word and not word.startswith("~")]
    for key in keys:
        _require_type(config, key)
    groups = {key.partition(".")[0] for key in keys}
    for name in sorted(groups & {*WITHOUT_TORCH}):
        built = instantiate(check_node(config[name], key=name, allowed=allowed), key=name)
        if isinstance(built, Batch):
            _require_division(built, config["trainer"])
        if isinstance(built, Budget):
            limits_of(built)
    if "trainer" in groups:
        _require_division(
            instantiate(check_node(config["batch"], key="batch", allowed=allowed), key="batch"), config["trainer"]
        )
    if "optimizer" in groups:
        require_settings(config, allowed=allowed)


def _require_type(config: dict[str, Any], key: str) -> None:
    """Check a value against the annotation in the source of what it is a setting of, where that is a plain one."""
    parent, _, name = key.rpartition(".")
    node = node_at(config, parent)
    if not parent or not isinstance(node, dict) or name not in node:
        return
    types = setting_types(str(node.get(TARGET, "")))
    value = check_value(node[name], types[name], key=key) if name in types else None
    if parent == "model" and name in REQUIRED and isinstance(value, int):
        check_positive(**{name: value})
        check_possible(key, value)
    if key == "batch.context_tokens" and isinstance(value, int):
        check_possible(key, value)


def _require_division(batch: Batch, trainer: dict[str, Any]) -> None:
    ranks = (trainer["devices"], trainer["num_nodes"])
    if batch.micro_batch_sequences != "auto" and all(isinstance(count, int) for count in ranks):
        plan_batches(batch, num_ranks=ranks[0] * ranks[1])
