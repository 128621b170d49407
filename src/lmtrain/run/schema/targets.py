"""The code that a config may name: an allow-list of packages, and for each key the kind of object that it takes.

A target is a public class or function of its slot's packages that gives the slot's kind: a class is a subclass of it,
a function says so in its return annotation. A slot below a node follows from the annotation of the argument that it
fills. The list is our own boundary: Hydra 1.3.8 blocks some targets and lets others run code (torch.load with
weights_only=False among them), and 1.4 will ask for such a list. Only the command line can extend it.
"""

import importlib
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Final, NewType, get_type_hints

from lmtrain.errors import ConfigurationError, suggest

VALUES: Final = (Any, int, float, str, bool, bytes, object, dict, list, tuple, set, type, Path, type(None))


@dataclass(frozen=True)
class Slot:
    """One place in a config: kinds by dotted name or as types, the packages to look in, and leading arguments.

    `packages` None are all packages of lmtrain. `called_with` names the run's arguments by position.
    """

    kinds: tuple[Any, ...]
    packages: tuple[str, ...] | None = None
    called_with: tuple[str, ...] | None = None


def _kind(name: str, *packages: str, called_with: tuple[str, ...] | None = None, or_none: bool = False) -> Slot:
    """Return the slot of one kind; without `packages`, the kind's own one."""
    own = name.rpartition(".")[0].rpartition(".")[0] + "."
    return Slot((name, type(None)) if or_none else (name,), packages or (own,), called_with)


def _factor(*packages: str) -> Slot:
    return Slot((float, type(None)), packages, ("step", "total_steps"))


_RULES: Final = ("lmtrain.run.", "lmtrain.accounting.scaling.")
SLOTS: Final[Mapping[str, Slot]] = MappingProxyType(
    {
        "adapter": _kind("lmtrain.adapters.lora.Lora", or_none=True),
        "attention": _kind("lmtrain.models.attention.base.Attention"),
        "batch": _kind("lmtrain.accounting.batches.Batch"),
        "budget": _kind("lmtrain.accounting.budgets.Budget"),
        "callbacks": _kind(
            "lightning.pytorch.callbacks.Callback", "lmtrain.callbacks.", "lightning.pytorch.callbacks."
        ),
        "cleaning": _kind("data_pipelines.stages.stage.Stage"),
        "cluster": _kind("lmtrain.accounting.cluster.Cluster"),
        "compile": _kind("lmtrain.parallel.compilation.Compilation"),
        "data": _kind("lmtrain.training.datamodule.TokenDataModule"),
        "data.folder": _kind("lmtrain.data.manifest.DatasetFolder", "lmtrain.data.", "data_pipelines."),
        "deduplicate": _kind("data_pipelines.stages.stage.Stage"),
        "engine": _kind("data_pipelines.stages.stage.Engine", "data_pipelines.engines."),
        "logger": _kind("lmtrain.tracking.following.Tracking"),
        "loss": _kind("lmtrain.losses.base.TokenLoss"),
        "make": _kind("data_pipelines.make_tokenizer.TokenizerReport"),
        "model": _kind("lmtrain.models.base.LanguageModel"),
        "module": _kind(
            "lightning.pytorch.LightningModule", "lmtrain.run.builders.", called_with=("model",), or_none=True
        ),
        "momentum_schedule": _factor("lmtrain.optim."),
        "objective": _kind("lmtrain.training.objectives.objective.Objective", or_none=True),
        "objective.rewards": Slot((float,), ("lmtrain.training.objectives.",), ("answer",)),
        "optimizer": _kind(
            "torch.optim.Optimizer", "lmtrain.optim.", "torch.optim.", "torchao.optim.", called_with=("model",)
        ),
        "packing": _kind("lmtrain.data.packing.Packing"),
        "precision": _kind("lmtrain.precision.policy.Precision"),
        "profiler": _kind("lightning.pytorch.callbacks.Callback", "lmtrain.training.profilers.", or_none=True),
        "recompute": _kind("lmtrain.models.base.LanguageModel", "lmtrain.parallel.", called_with=("model",)),
        "health": _kind("lmtrain.run.settings.HealthSettings"),
        "experts": _kind("lmtrain.run.settings.RoutingSettings"),
        "run": _kind("lmtrain.run.settings.RunSettings"),
        "scaling": Slot((dict[str, float], "lmtrain.accounting.scaling.Scaling"), _RULES, ("config", "typed")),
        "schedule": _factor("lmtrain.optim."),
        "source": _kind("data_pipelines.sources.base.Source"),
        "spikes": _kind("lmtrain.training.spikes.SpikeFilter", or_none=True),
        "strategy": _kind("lmtrain.parallel.strategy.Parallelism"),
        "sweep": _kind("lmtrain.search.search_settings.SearchSettings"),
        "tokenizer": _kind("data_pipelines.stages.train_tokenizer.TokenizerSpec"),
        "trainer": _kind("lightning.pytorch.Trainer", "lmtrain.training."),
        "weight_average": _kind("lmtrain.training.weight_average.WeightAverage", or_none=True),
        "weight_decay_schedule": _factor("lmtrain.optim."),
    }
)


def slot_at(key: str) -> Slot:
    """Return the slot of a dotted key: its own, or its group's; a key of no group takes none.

    A member of a group, as callbacks.checkpoint, is a thing of the group's kind.
    """
    return SLOTS.get(key) or SLOTS.get(key.partition(".")[0]) or Slot((), ())


def slot_of(annotation: Any) -> Slot:
    """Return the slot of an argument: the classes in its annotation; plain values and Any take no target."""
    return Slot(tuple(_classes(annotation)))


def fits(found: Callable[..., Any], slot: Slot) -> bool:
    """Return whether a class or function gives a slot's kind."""
    kinds = [import_target(kind) if isinstance(kind, str) else kind for kind in slot.kinds]
    if isinstance(found, type):
        return any(_is_subclass(found, kind) for kind in kinds)
    if not inspect.isfunction(found):
        return False
    given = get_type_hints(found).get("return", Any)
    is_given = any(given == kind or (isinstance(given, type) and _is_subclass(given, kind)) for kind in kinds)
    leading = [each.name for each in inspect.signature(found).parameters.values() if each.kind is not each.KEYWORD_ONLY]
    return is_given and (not leading or tuple(leading[: len(slot.called_with or ())]) == slot.called_with)


def describe(slot: Slot) -> str:
    """Name the kinds of a slot in words."""
    names = [_name(kind) for kind in slot.kinds if kind is not type(None)]
    return " or ".join(names) if names else "plain values alone"


def _name(kind: Any) -> str:
    return kind.rpartition(".")[2] if isinstance(kind, str) else getattr(kind, "__name__", str(kind))


def _classes(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, UnionType, typing.Annotated):
        return [kind for part in typing.get_args(annotation) for kind in _classes(part)]
    if typing.get_origin(annotation) is not None:  # the values of a mapping, the items of a list
        return [kind for part in typing.get_args(annotation)[-1:] for kind in _classes(part)]
    is_kind = isinstance(annotation, NewType) or (isinstance(annotation, type) and annotation not in VALUES)
    return [annotation] if is_kind else []


def _is_subclass(found: type, kind: Any) -> bool:
    if not isinstance(kind, type) or kind is type(None) or typing.get_origin(kind) is not None:
        return False
    if typing.Protocol not in kind.__mro__:
        return issubclass(found, kind)
    from typing_extensions import get_protocol_members, is_protocol  # 0.025 of a plan's 0.95 s

    if is_protocol(kind):
        return all(hasattr(found, member) for member in get_protocol_members(kind))
    return issubclass(found, kind)


DOTTED_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")  # no letter that only looks like one
ALLOWED_PREFIXES = ("lmtrain.", "data_pipelines.", "lightning.pytorch.callbacks.", "torch.optim.", "torchao.optim.")


OPTION: Final = "option"  # the key of a shorthand's name: its code has options with more settings


def word_of(node: Mapping[str, Any]) -> str:
    """Return an option's name: as a shorthand states it, else the last part of its target."""
    return str(node.get(OPTION) or node["_target_"]).rpartition(".")[2]


def find_target(name: str, *, key: str, allowed: Sequence[str] = (), slot: Slot | None = None) -> Callable[..., Any]:
    """Return the class or function of `key`._target_; `slot` None is the key's own.

    Raises:
        ConfigurationError: The name is outside the allow-list, private, does not exist, or is of another kind.
    """
    slot = slot or slot_at(key)
    packages = require_allowed(name, key=key, allowed=allowed, slot=slot)
    module_name, _, attribute = name.rpartition(".")
    module = _import_module(module_name, key=key, target=name)
    found = getattr(module, attribute, None)
    if not callable(found):
        msg = f"{key}._target_={name}: {module_name} has no {attribute}.{suggest(attribute, vars(module))}"
        raise ConfigurationError(msg)
    if not f"{found.__module__}.".startswith(packages):
        msg = f"{key}._target_={name} only passes on {found.__module__}.{attribute}, which is not allowed."
        raise ConfigurationError(msg)
    says_nothing = inspect.isfunction(found) and "return" not in found.__annotations__
    if not (fits(found, slot) or (name.startswith(tuple(allowed)) and says_nothing)):
        msg = f"{key}._target_={name} is of another kind: {key} takes {describe(slot)}"
        raise ConfigurationError(f"{msg}, a class of that kind or a function whose return annotation names it.")
    return found


def require_allowed(name: str, *, key: str, allowed: Sequence[str], slot: Slot) -> tuple[str, ...]:
    """Return the packages of a slot's targets, without an import of the name."""
    if not DOTTED_NAME.fullmatch(name):
        raise ConfigurationError(f"{key}._target_={name!r} is not a dotted name, as lmtrain.models.llama.Llama is.")
    packages = (*(ALLOWED_PREFIXES if slot.packages is None else slot.packages), *allowed)
    if not name.startswith(packages):
        raise ConfigurationError(_not_allowed(name, key=key, packages=packages))
    if any(part.startswith("_") for part in name.split(".")):
        raise ConfigurationError(f"{key}._target_={name} is private; a target is a public class or function.")
    return packages


def import_target(name: str) -> Callable[..., Any]:
    """Return the class or function of a checked target."""
    module_name, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module_name), attribute)


def _not_allowed(name: str, *, key: str, packages: Sequence[str]) -> str:
    """Refuse a target without its own package in the advice: it may stand in somebody else's file."""
    if not packages:
        return f"{key}._target_={name} is not allowed: {key} takes plain values alone; leave _target_ out."
    return (
        f"{key}._target_={name} is not allowed: a target here starts with {', '.join(packages)};"
        " code that you wrote yourself is allowed by --allow-target my_package. on the command line; where a file of"
        " someone else names this target, do not allow it."
    )


def _import_module(module_name: str, *, key: str, target: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not module_name.startswith(missing.name):
            raise
        raise ConfigurationError(f"{key}._target_={target}: module {missing.name} not found.") from missing
