"""How a model differs from the one in `init_from`, a run or an import, by its settings, without torch.

Training also compares each tensor's name and shape, before anything is allocated (`initial_weights`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.interop.folders import WITHOUT_EFFECT, imported_facts, is_imported
from lmtrain.run.schema.signatures import built_class, default_settings
from lmtrain.run.stored_runs.find_run import find_job
from lmtrain.run.stored_runs.job import differing, flatten, shown_value

KEY: Final = "init_from"
TARGET: Final = "_target_"
# Settings that always change the shape of some tensor.
SIZES: Final = ("width", "num_layers", "depth", "feed_forward_width", "vocab_size", "value_embedding_layers")
FROM_SHAPES: Final = frozenset({"head_width", "num_kv_heads"})  # follow from the heads if null; then shapes agree
MAX_NAMED: Final = 3


def require_same_sizes(init_from: str, model: Mapping[str, Any]) -> None:
    """Refuse a model's node of another class or size than the one in `init_from`, a run or an imported folder."""
    path = Path(init_from)
    if is_imported(path):
        there: Any = imported_facts(path).get("settings")
    else:
        there = find_job(path, key=KEY, takes_imports=True).config.get("model")
    if isinstance(there, Mapping) and (difference := size_difference(there, model)):
        raise ConfigurationError(f"{KEY}={init_from} is another model: {difference}. {model_fix(there, model)}")


def size_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return the first difference between two models' nodes that keeps the weights of one out of the other."""
    classes = [built_class(str(node.get(TARGET, ""))) for node in (there, here)]
    if None not in classes and classes[0] != classes[1]:
        return f"a {classes[0]} there and a {classes[1]} here"
    if None in classes and there.get(TARGET) != here.get(TARGET):  # somebody else's class may have equal tensors
        return None
    for name in SIZES:
        other, own = there.get(name), here.get(name)
        if isinstance(other, int | list) and isinstance(own, int | list) and other != own:
            return f"model.{name} is {other} there and {own} here"
    return None


def model_fix(there: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return the fix for another model than the one there, with a few of the differing settings."""
    found = model_differences(there, model)
    fix = f"Leave out model=... and model.*=...: {KEY} brings its own."
    return f"{fix} Differing: {'; '.join(found[:MAX_NAMED])}." if found else fix


def model_differences(there: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """Return the differing settings of two models' nodes, sizes first, as `model.KEY=HERE, there THERE`."""
    both = differing(*(flatten(_completed(node), "model") for node in (there, model)))
    keys = [key for key in both if key.split(".")[1] not in WITHOUT_EFFECT | FROM_SHAPES]
    keys.sort(key=lambda key: (None in both[key], key.rpartition(".")[2] not in SIZES, key))
    return [f"{key}={shown_value(both[key][1])}, there {shown_value(both[key][0])}" for key in keys]


def _completed(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node with the defaults of its class, and of the nodes in it."""
    settings = {**default_settings(str(node.get(TARGET, ""))), **node}
    return {name: _completed(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
