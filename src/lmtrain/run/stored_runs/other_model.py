"""Another model than the one in `init_from`, a run or an import: told by settings and parameters alone, without torch.

Training compares each tensor's name and shape besides, before anything is allocated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.errors import ConfigurationError
from lmtrain.interop.imported_folder import imported_facts, is_imported
from lmtrain.interop.without_effect import WITHOUT_EFFECT
from lmtrain.run.schema.source_signatures import built_class, default_settings
from lmtrain.run.stored_runs.checkpoint_source import find_job, run_of
from lmtrain.tracking.atomic_files import read_json
from lmtrain.training.checkpointing.checkpoints import NOT_SET

KEY: Final = "init_from"
TARGET: Final = "_target_"
# Where weights fit, the number of heads settles these where they are None.
OF_THE_SHAPES: Final = frozenset({"head_width", "num_kv_heads"})
# Settings of which another value is always another shape, or a tensor elsewhere.
SIZES: Final = ("width", "num_layers", "depth", "feed_forward_width", "vocab_size", "value_embedding_layers")
FIX: Final = f"Leave out model=... and model.*=...: {KEY} brings its own."
MOST_TOLD: Final = 3


def require_same_sizes(init_from: str, model: Mapping[str, Any]) -> None:
    """Refuse a model's node of another class or size than the one in `init_from`, a run or an imported folder.

    Raises:
        ConfigurationError: It is, or `init_from` names neither.
        EnvironmentProblem: It names a damaged checkpoint.
    """
    path = Path(init_from)
    if is_imported(path):
        there: Any = imported_facts(path).get("settings")
    else:
        there = find_job(path, key=KEY, takes_imports=True).config.get("model")
    if not isinstance(there, Mapping):
        return
    if difference := size_difference(there, model):
        raise ConfigurationError(f"{KEY}={init_from} is another model: {difference}. {give_its_model(there, model)}")


def size_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return the first difference of two models' nodes to keep the weights of one out of the other."""
    return _another_class(there, here) or _another_size(there, here)


def _another_class(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return the classes of two nodes where both are ours and differ: one of somebody else's may have equal tensors."""
    other, own = built_class(str(there.get(TARGET, ""))), built_class(str(here.get(TARGET, "")))
    return f"a {other} there and a {own} here" if other and own and other != own else None


def _another_size(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return the first size of another value in two nodes of one target, or of one class of ours."""
    targets = [str(node.get(TARGET, "")) for node in (there, here)]
    if targets[0] != targets[1] and None in map(built_class, targets):
        return None
    sizes = {name: (there.get(name), here.get(name)) for name in SIZES}
    given = {name: both for name, both in sizes.items() if all(isinstance(one, int | list) for one in both)}
    differing = (name for name, (other, own) in given.items() if other != own)
    return next((f"model.{name} is {given[name][0]} there and {given[name][1]} here" for name in differing), None)


def require_same_parameters(init_from: str, model: Mapping[str, Any], shape: ModelShape) -> None:
    """Refuse a model of more or fewer parameters than the run in `init_from` planned; an adapter's are left out.

    Raises:
        ConfigurationError: It has.
    """
    path = Path(init_from)
    if is_imported(path):
        return
    run = run_of(path)
    planned: Any = read_json(run / "plan.json").get("parameters", {})
    total, trained = planned.get("total"), planned.get("trained")
    here = shape.num_frozen_parameters or shape.num_parameters
    if not isinstance(total, int) or not isinstance(trained, int) or here == (there := total - trained or total):
        return
    fix = give_its_model(find_job(path, key=KEY).config["model"], model)
    raise ConfigurationError(f"{KEY}={init_from} is another model: {there:,} parameters there and {here:,} here. {fix}")


def give_its_model(there: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return the fix of another model than the one there, and a few differing settings: those of both, sizes first."""
    found = _differing(there, model)
    names = sorted(found, key=lambda name: (NOT_SET in found[name], _rank(name), name))
    told = "; ".join(_told(name, *found[name]) for name in names[:MOST_TOLD])
    rest = f"; and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    return f"{FIX} Differing: {told}{rest}." if names else FIX


def differences(there: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return the differing settings of two models' nodes, as one sentence; empty without a difference."""
    differing = [_told(name, *both) for name, both in _differing(there, model).items()]
    return f"{'; '.join(differing)}." if differing else ""


def _differing(there: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the differing settings by name, in its order: here and there."""
    here, other = _completed(model), _completed(there)
    both = {
        name: (here.get(name, NOT_SET), other.get(name, NOT_SET))
        for name in sorted({*here, *other} - WITHOUT_EFFECT - OF_THE_SHAPES)
    }
    return {name: (own, other) for name, (own, other) in both.items() if own != other}


def _rank(name: str) -> int:
    return SIZES.index(name) if name in SIZES else len(SIZES)


def _told(name: str, here: Any, there: Any) -> str:
    return f"model.{name}={here}, there {there}"


def _completed(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node with the defaults of its class, also of the nodes in it."""
    settings = {**default_settings(str(node.get(TARGET, ""))), **node}
    return {name: _completed(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
