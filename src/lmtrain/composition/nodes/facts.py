"""What an option says of itself without loading what it builds with.

An option at PACKAGE.MODULE.NAME is described by the function NAME of PACKAGE.facts.MODULE, which takes the settings of
its node and imports no torch.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from lmtrain.accounting.training_plan.spread import ModelSpread
from lmtrain.errors import ConfigurationError

OWN = "lmtrain.parallel."


def spread_of(node: Mapping[str, Any], *, allowed: Sequence[str] = ()) -> ModelSpread:
    """Return how a strategy spreads a model; `allowed` are the packages that may be loaded beside our own.

    Raises:
        ConfigurationError: It says nothing about itself.
    """
    home, name = _home(node)
    found = _described(node, allowed=allowed)
    if found is None:
        raise ConfigurationError(
            f"strategy._target_={node['_target_']} does not say what it shards and sends, which a plan counts on; "
            f"write {name}(**settings) -> ModelSpread in {home.replace('.', '/')}.py, as "
            "lmtrain/parallel/facts/fsdp.py does."
        )
    return found


def share_recomputed(node: Mapping[str, Any], *, allowed: Sequence[str] = ()) -> float:
    """Return the share of a model's blocks whose products `recompute` computes twice; 0 where it says nothing."""
    return _described(node, allowed=allowed) or 0.0


def _home(node: Mapping[str, Any]) -> tuple[str, str]:
    """Return the module that describes an option, and the name of the description."""
    module, _, name = str(node["_target_"]).rpartition(".")
    package, _, file = module.rpartition(".")
    return f"{package}.facts.{file}", name


def _described(node: Mapping[str, Any], *, allowed: Sequence[str]) -> Any:
    home, name = _home(node)
    found = getattr(_imported(home), name, None) if str(node["_target_"]).startswith((OWN, *allowed)) else None
    return found and found(**{key: value for key, value in node.items() if not key.startswith("_")})


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not name.startswith(missing.name):
            raise
        return None
