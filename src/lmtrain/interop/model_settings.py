"""A model as its settings: those of a config node or an imported folder, completed by the constructor's defaults."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from lmtrain.errors import ConfigurationError
from lmtrain.interop.folders import WITHOUT_EFFECT
from lmtrain.models.attention.base import Attention
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.base import LanguageModel
from lmtrain.models.delta_net import GatedDelta
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.latent_attention import LatentWidths
from lmtrain.models.llama import Llama
from lmtrain.models.mamba import Mamba2
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.nano import nano, nano_settings
from lmtrain.models.rope import SCALINGS
from lmtrain.models.short_convolution import ShortConvolution
from lmtrain.models.transformers_config import AS_IS
from lmtrain.models.transformers_model import TransformersModel

TARGET = "_target_"
MODELS: dict[str, type[LanguageModel]] = {f"{model.__module__}.{model.__name__}": model for model in (GPT2, Llama)}
PARTS = {
    f"{part.__module__}.{part.__name__}": part
    for part in (Experts, GatedDelta, LatentWidths, Mamba2, ShortConvolution, *SCALINGS)
}


def node_of(kind: type, **settings: Any) -> dict[str, Any]:
    """Return settings as a config node with their class."""
    return {TARGET: f"{kind.__module__}.{kind.__name__}", **settings}


def complete(node: Mapping[str, Any], *, key: str = "model") -> dict[str, Any]:
    """Return a node's settings with every default filled in, also of the nodes below it.

    Raises:
        ConfigurationError: The model's class has no exchange format.
    """
    target = str(node.get(TARGET))
    if target == AS_IS:  # its class has the defaults
        return {**node}
    if target == f"{nano.__module__}.{nano.__name__}":
        dial = {name: value for name, value in node.items() if name not in (TARGET, "attention")}
        return complete(node_of(Llama, **nano_settings(**dial)), key=key)
    kind = {**MODELS, **PARTS}.get(target)
    if kind is None:
        known = ", ".join(MODELS)
        raise ConfigurationError(
            f"{key}.{TARGET}={target} has no counterpart in transformers; those with one: {known}."
        )
    settings = {name: value for name, value in _defaults(kind).items() if name not in node}
    for name, value in node.items():
        is_part = isinstance(value, Mapping) and name not in WITHOUT_EFFECT
        settings[name] = complete(value, key=f"{key}.{name}") if is_part else value
    return settings


def off_default(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings behind a model's function, unless at their defaults."""
    defaults = _defaults(MODELS[settings[TARGET]])
    kept = {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT and name in defaults}
    return {name: value for name, value in kept.items() if plain(value) != plain(defaults[name])}


def default_of(settings: Mapping[str, Any], name: str) -> Any:
    """Return the default of one of a model's settings."""
    return plain(_defaults(MODELS[settings[TARGET]])[name])


def build(node: Mapping[str, Any], *, attention: Attention = sdpa) -> LanguageModel:
    """Build a model on the meta device, where it costs nothing."""
    if node.get(TARGET) == AS_IS:
        with torch.device("meta"):
            return TransformersModel(config=node["config"])
    settings = complete(node)  # a dial becomes the settings it stands for
    with torch.device("meta"):
        return MODELS[settings[TARGET]](**_arguments(settings), attention=attention)


def _arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, value in node.items():
        if isinstance(value, Mapping) and TARGET in value and name not in WITHOUT_EFFECT:
            arguments[name] = PARTS[value[TARGET]](**_arguments(value))
        elif name not in (TARGET, "attention"):
            arguments[name] = value
    return arguments


def _defaults(kind: type) -> dict[str, Any]:
    parameters = inspect.signature(kind).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty and p.name != "attention"}


def plain(value: Any) -> Any:
    """Return a tuple as the list that a config has."""
    return list(value) if isinstance(value, tuple) else value
