"""Refuse impossible typed values, as far as known without torch: its import takes seconds.

Everything is checked again, and more, before anything is allocated; here the refusal only comes sooner.
"""

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.budgets import limits_of
from lmtrain.accounting.options.ranges import COUNTS, require_count
from lmtrain.errors import DataError, suggest_path
from lmtrain.models.dimensions import REQUIRED, check_heads, check_layers, check_positive, check_possible
from lmtrain.run.compose.unknown_words import node_at
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.check import TARGET, check_value
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.slots import slot_at
from lmtrain.run.schema.source_signatures import setting_types
from lmtrain.run.schema.targets import require_allowed
from lmtrain.run.validators.optimizer import require_settings
from lmtrain.run.validators.ranks import require_ranks
from lmtrain.run.validators.tokenizer_size import require_rows

OURS: Final = "lmtrain.models."
ROTARY: Final = "rope_base"  # a setting of each model with rotary pairs
SOURCE_PATHS: Final = ("source.paths", "source.validation_paths")


def refuse_typed(config: RunConfig, typed: Sequence[str]) -> None:
    """Look at the typed values of a composed config.

    Raises:
        ConfigurationError: The first wrong value.
    """
    keys = [word.lstrip("+").partition("=")[0] for word in typed if "=" in word and not word.startswith("~")]
    for key in keys:
        _require_type(config.values, key)
        _require_target(config, key)
    groups = {key.partition(".")[0] for key in keys}
    if groups & {"batch", "trainer", "strategy"} and config.batch.micro_batch_sequences != "auto":
        _require_division(config)
    if groups & {"trainer", "strategy"}:
        require_ranks(config)
    if "budget" in groups:
        limits_of(config.budget)
    if "logger" in groups:
        config.logger.checked(config.allowed).build()
    if "optimizer" in groups:
        require_settings(config)
    if "model" in groups:
        _require_layers(config.model)
        _require_heads(config.model)
        sizes = config.model.get("vocab_size"), config.tokenizer.get("vocab_size")
        if isinstance(sizes[0], int) and isinstance(sizes[1], int):
            require_rows(sizes[0], num_entries=sizes[1])


def require_paths_here(config: RunConfig, typed: Sequence[str]) -> None:
    """Look for typed files and folders of a source, where the cluster names no device: others have their own disks.

    Raises:
        DataError: Nothing is at one of them.
    """
    keys = {word.lstrip("+").partition("=")[0] for word in typed}
    for key in SOURCE_PATHS if config.cluster.device is None else ():
        if key in keys:
            require_paths(node_at(config.values, key), key=key)


def require_paths(paths: Any, *, key: str) -> None:
    """Look at paths of this machine's disks, patterns left out.

    Raises:
        DataError: Nothing is at one of them.
    """
    for path in [paths] if isinstance(paths, str) else paths if isinstance(paths, list) else ():
        is_elsewhere = "://" in str(path) or glob.has_magic(str(path))
        here = Path(str(path)).expanduser()
        if not is_elsewhere and not here.exists():
            raise DataError(f"{key}: {path} does not exist (looked from {Path.cwd()}).{suggest_path(here)}")


def _require_division(config: RunConfig) -> None:
    """Divide a step, unless a strategy is still to be chosen: a tensor group's ranks share their sequences."""
    if not (config.spread.chooses and config.cluster.device_bytes):
        config.divided(config.batch)


def _require_target(config: RunConfig, key: str) -> None:
    """Check the name of a group's typed target, before its import."""
    group, _, name = key.rpartition(".")
    slot, target = slot_at(group), node_at(config.values, key) if name == TARGET else None
    if isinstance(target, str) and slot.kinds:
        require_allowed(target, key=group, allowed=config.allowed, slot=slot)


def _require_layers(model: Node) -> None:
    """Check the lists of layers against a plain depth."""
    num_layers = model.get("num_layers")
    lists = {
        name: value for name, value in model.values.items() if name.endswith("_layers") and isinstance(value, list)
    }
    for name, layers in lists.items():
        if isinstance(num_layers, int) and all(isinstance(layer, int) for layer in layers):
            check_layers(name, layers, num_layers)


def _require_heads(model: Node) -> None:
    """Check the heads of our own models, in the order of their construction."""
    width, num_heads, num_kv_heads = (model.get(name) for name in ("width", "num_heads", "num_kv_heads"))
    if not model.target.startswith(OURS) or not isinstance(num_heads, int):
        return
    kv_heads = num_kv_heads if isinstance(num_kv_heads, int) else 1
    check_positive(num_heads=num_heads, num_kv_heads=kv_heads)
    check_heads(
        width=width if isinstance(width, int) and model.get("head_width") is None else None,
        num_heads=num_heads,
        num_kv_heads=kv_heads,
        is_rotary=ROTARY in setting_types(model.target),
    )


def _require_type(config: Mapping[str, Any], key: str) -> None:
    """Check a value against its setting's annotation in the source, where plain."""
    parent, _, name = key.rpartition(".")
    node = node_at(config, parent)
    if not parent or not isinstance(node, dict) or name not in node:
        return
    types = setting_types(str(node.get(TARGET, "")))
    value = check_value(node[name], types[name], key=key) if name in types else None
    if parent.startswith("callbacks.") and name in COUNTS and isinstance(value, int | float):
        require_count(key, value)
    if parent == "model" and name in REQUIRED and isinstance(value, int):
        check_positive(**{name: value})
        check_possible(key, value)
    if key == "batch.context_tokens" and isinstance(value, int):
        check_possible(key, value)
