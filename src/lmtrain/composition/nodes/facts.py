"""What an option says of itself without loading what it builds with.

A strategy at PACKAGE.MODULE.NAME is described by the function NAME of PACKAGE.facts.MODULE, which takes the settings of
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
    module, _, name = str(node["_target_"]).rpartition(".")
    package, _, file = module.rpartition(".")
    home = f"{package}.facts.{file}"
    found = getattr(_imported(home), name, None) if f"{module}.{name}".startswith((OWN, *allowed)) else None
    if found is None:
        raise ConfigurationError(
            f"strategy._target_={module}.{name} does not say what it shards and sends, which a plan counts on; write "
            f"{name}(**settings) -> ModelSpread in {home.replace('.', '/')}.py, as lmtrain/parallel/facts/fsdp.py does."
        )
    return found(**{key: value for key, value in node.items() if not key.startswith("_")})


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not name.startswith(missing.name):
            raise
        return None
