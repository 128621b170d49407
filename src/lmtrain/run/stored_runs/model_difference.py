"""How a model differs from the one in `init_from`, a run or an import: by settings and parameter counts, without torch.

Training also compares each tensor's name and shape, before anything is allocated (`initial_weights`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.errors import ConfigurationError
from lmtrain.interop.folders import WITHOUT_EFFECT, imported_facts, is_imported
from lmtrain.run.schema.signatures import built_class, default_settings
from lmtrain.run.stored_runs.find_run import find_job, run_of
from lmtrain.tracking.atomic_files import read_json
from lmtrain.training.checkpointing.checkpoints import NOT_SET

KEY: Final = "init_from"
TARGET: Final = "_target_"
# Follow from the number of heads if None, and then agree if the weights fit.
FROM_SHAPES: Final = frozenset({"head_width", "num_kv_heads"})
# Settings that always change the shape of some tensor.
SIZES: Final = ("width", "num_layers", "depth", "feed_forward_width", "vocab_size", "value_embedding_layers")
FIX: Final = f"Leave out model=... and model.*=...: {KEY} brings its own."
MAX_NAMED: Final = 3


def require_same_sizes(init_from: str, model: Mapping[str, Any]) -> None:
    """Refuse a model's node of another class or size than the one in `init_from`, a run or an imported folder.

    Raises:
        ConfigurationError: They differ, or `init_from` names neither.
        EnvironmentProblem: It names a damaged checkpoint.
    """
    path = Path(init_from)
    if is_imported(path):
        there: Any = imported_facts(path).get("settings")
    else:
        there = find_job(path, key=KEY, takes_imports=True).config.get("model")
    if isinstance(there, Mapping) and (difference := size_difference(there, model)):
        raise ConfigurationError(f"{KEY}={init_from} is another model: {difference}. {model_fix(there, model)}")


def require_same_parameters(init_from: str, model: Mapping[str, Any], shape: ModelShape) -> None:
    """Refuse a model with another number of parameters than the run in `init_from` planned, without its adapter's.

    Raises: ConfigurationError.
    """
    path = Path(init_from)
    if is_imported(path):
        return
    planned: Any = read_json(run_of(path) / "plan.json").get("parameters", {})
    total, trained = planned.get("total"), planned.get("trained")
    here = shape.num_frozen_parameters or shape.num_parameters
    if not isinstance(total, int) or not isinstance(trained, int) or here == (there := total - trained or total):
        return
    fix = model_fix(find_job(path, key=KEY).config["model"], model)
    raise ConfigurationError(f"{KEY}={init_from} is another model: {there:,} parameters there and {here:,} here. {fix}")


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
    """Return the fix for another model than the one there, with a few differing settings, sizes first."""
    found = _differing(there, model)
    names = sorted(found, key=lambda name: (NOT_SET in found[name], name not in SIZES, name))
    if not names:
        return FIX
    more = f"; and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{FIX} Differing: {'; '.join(_shown(name, *found[name]) for name in names[:MAX_NAMED])}{more}."


def differences(there: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return the differing settings of two models' nodes, as one sentence; empty without a difference."""
    differing = [_shown(name, *both) for name, both in _differing(there, model).items()]
    return f"{'; '.join(differing)}." if differing else ""


def _differing(there: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values here and there of each differing setting."""
    here, other = _completed(model), _completed(there)
    names = sorted({*here, *other} - WITHOUT_EFFECT - FROM_SHAPES)
    both = {name: (here.get(name, NOT_SET), other.get(name, NOT_SET)) for name in names}
    return {name: values for name, values in both.items() if values[0] != values[1]}


def _shown(name: str, here: Any, there: Any) -> str:
    return f"model.{name}={here}, there {there}"


def _completed(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node with the defaults of its class, and of the nodes in it."""
    settings = {**default_settings(str(node.get(TARGET, ""))), **node}
    return {name: _completed(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
