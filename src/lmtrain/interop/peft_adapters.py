"""Adapters in the files of PEFT: read to train on from, merged into a base model, and written.

Matrices stand apart there where ours are fused. In both, a matrix [O, I] changes by scale * B A, A [R, I] and B [O, R];
GPT-2's transposed weights change nothing in it. A layer that is fused in transformers too has one pair of factors for
all of its matrices: A one below another, B along a diagonal, and the rank of all together.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lmtrain.accounting.quantities import format_count
from lmtrain.adapters.lora import Lora
from lmtrain.adapters.low_rank import adapters_of, layers_of
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.interop.folders import ADAPTER_CONFIG, make_folder
from lmtrain.interop.hf_config import OWN_PREFIX, OWN_TYPE
from lmtrain.interop.hf_export import ModelToExport, export_config
from lmtrain.interop.hf_families import FAMILIES
from lmtrain.interop.hf_import import fill_import
from lmtrain.interop.model_settings import build, complete
from lmtrain.interop.safetensors_files import TensorToWrite, require_finite
from lmtrain.interop.tensor_map import map_tensors
from lmtrain.models.base import LanguageModel
from lmtrain.models.transformers_model import TransformersModel
from lmtrain.storage import foreign_json

ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
PREFIX: Final = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
WEIGHT: Final = ".weight"


def matrices_of(model: LanguageModel, model_type: str) -> dict[str, dict[str, slice]]:
    """Return their modules of each linear layer of the blocks, by its name: the rows of each in our layer's weight."""
    layers = layers_of(model)
    if isinstance(model, TransformersModel):
        return {name: {name.removeprefix("module."): slice(None)} for name in layers}
    found: dict[str, dict[str, slice]] = {}
    for tensor in map_tensors(model, model_type):
        name = tensor.name.removesuffix(WEIGHT)
        if name in layers and tensor.name.endswith(WEIGHT):
            regions: dict[str, Any] = {_module(part.name): part.region for part in tensor.parts}
            found[name] = {module: region[0] if region else slice(None) for module, region in regions.items()}
    return found


def type_of(model: LanguageModel, modules: Iterable[str]) -> str:
    """Return the kind of names in a file of PEFT: of our own code, or of the class of transformers with most."""
    wanted, own = {*modules}, {f"{OWN_PREFIX}{name}" for name in layers_of(model)}
    if own & wanted:
        return OWN_TYPE
    found = {model_type: _modules(model, model_type) for model_type in FAMILIES}
    return max(found, key=lambda model_type: len(wanted & found[model_type]))


def _modules(model: LanguageModel, model_type: str) -> set[str]:
    """Return the names of a class for the model's layers; none where it has no place for a tensor."""
    try:
        return {module for modules in matrices_of(model, model_type).values() for module in modules}
    except KeyError:
        return set()


def _module(name: str) -> str:
    """Return the module of a weight; that of Nemotron-H has another name in files."""
    return name.removesuffix(WEIGHT).replace("backbone.", "model.", 1)


# Settings of PEFT with an effect on the result, and the value of plain LoRA.
PLAIN: Final[dict[str, Any]] = {
    "use_dora": False,
    "bias": "none",
    "modules_to_save": None,
    "layer_replication": None,
    "alora_invocation_tokens": None,
}
ALPHAS: Final = "alpha_pattern"  # by expressions, of which only names with an escaped point are read
NAME: Final = re.compile(r"[\w.-]+")
CHANGES_BASE: Final = ("pissa", "corda", "olora", "lora_ga", "loftq")  # begins of init_lora_weights: another base's B A


@dataclass(frozen=True, kw_only=True)
class PeftFolder:
    """A checked adapter: its config, and the factors A [R, I] and B [O, R] of each module."""

    folder: Path
    config: dict[str, Any]
    factors: dict[str, tuple[Tensor, Tensor]]

    def scale(self, module: str) -> float:
        """Return the factor of a module's change."""
        rank, own = self.factors[module][0].shape[0], self.config[ALPHAS].items()
        own_alpha = (value for key, value in own if f".{module}".endswith(f".{key}"))
        alpha = float(next(own_alpha, self.config["lora_alpha"]))
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def require(self, adapter: Lora) -> None:
        """Refuse an adapter of another rank."""
        if self.config["r"] != adapter.rank:
            raise ConfigurationError(
                f"adapter.rank={adapter.rank}, and adapter.start={self.folder} has rank {self.config['r']}; give "
                f"adapter.rank={self.config['r']} adapter.alpha={self.config['lora_alpha']}."
            )


def open_peft(folder: Path) -> PeftFolder:
    """Read and check a folder written by PEFT's save_pretrained, which must be a plain LoRA."""
    if not (folder / ADAPTER_CONFIG).is_file():
        raise ConfigurationError(f"{folder} has no {ADAPTER_CONFIG}; name a folder of PEFT's save_pretrained.")
    try:
        config: dict[str, Any] = foreign_json.read(folder / ADAPTER_CONFIG)
        tensors = load_file(folder / ADAPTER_WEIGHTS)
        rank, alpha, kind = int(config["r"]), float(config["lora_alpha"]), config["peft_type"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
        raise DataError(f"{folder} is not a complete adapter folder ({problem}).") from problem
    if kind != "LORA" or rank < 1 or not math.isfinite(alpha):
        raise DataError(f"{folder / ADAPTER_CONFIG}: peft_type={kind}, r={rank}, lora_alpha={alpha:g} is not LoRA.")
    given: Any = config.get(ALPHAS) or {}
    alphas = {str(key).replace(r"\.", "."): given[key] for key in given} if isinstance(given, dict) else None
    different = [name for name, plain in PLAIN.items() if (config.get(name) or plain) != plain]
    if str(config.get("init_lora_weights")).lower().startswith(CHANGES_BASE):
        different.append("init_lora_weights")
    if alphas is None or not all(map(NAME.fullmatch, alphas)):
        different.append(ALPHAS)
    if different or alphas is None:
        name = different[0]
        raise DataError(
            f"{folder / ADAPTER_CONFIG}: {name}={config[name]} is not supported; only plain LoRA of modules by name is."
        )
    return PeftFolder(folder=folder, config={**config, ALPHAS: alphas}, factors=_pairs(tensors, folder))


@torch.no_grad()
def fill_adapters(model: LanguageModel, start: PeftFolder) -> None:
    """Copy the factors of a folder into a model's adapters; other matrices keep theirs, without a change.

    Raises:
        DataError: A module of the folder has no adapter in the model, or another shape or rank.
    """
    adapters, taken = dict(adapters_of(model)), set[str]()
    for name, modules in matrices_of(model, type_of(model, start.factors)).items():
        found = [module for module in modules if module in start.factors]
        if name not in adapters or not found:
            continue
        taken |= {*found}
        own, theirs = adapters[name].factors(), [(module, start.factors.get(module)) for module in modules]
        if len(theirs) != len(own):  # fused there too
            theirs = [(found[0], pair) for pair in _apart(*start.factors[found[0]], own)]
        for (module, pair), (down, up) in zip(theirs, own, strict=True):
            if pair is None:
                continue
            if (pair[0].shape, pair[1].shape) != (down.shape, up.shape):
                raise DataError(
                    f"{start.folder}: {module} has factors {list(pair[0].shape)} and {list(pair[1].shape)}, and the "
                    f"adapter {list(down.shape)} and {list(up.shape)}; `lmtrain import peft` merges any rank."
                )
            scale = start.scale(module) / adapters[name].scale
            down.copy_(pair[0])
            up.copy_(pair[1] if scale == 1 else pair[1] * scale)
    if missing := [module for module in start.factors if module not in taken]:
        raise DataError(
            f"{start.folder} adapts {missing[0]} ({format_count(len(missing), 'module')} in all), which has no "
            "adapter here; adapter.targets=null adapts every layer."
        )


def add_changes(model: LanguageModel, start: PeftFolder) -> None:
    """Add the changes of a folder to the weights of a plain model, in fp32."""
    places = {
        module: (model.get_parameter(f"{name}.weight"), rows)
        for name, modules in matrices_of(model, type_of(model, start.factors)).items()
        for module, rows in modules.items()
    }
    for module, (down, up) in start.factors.items():
        if module not in places:
            raise DataError(f"{start.folder} adapts {module}, no layer of the base.{suggest(module, [*places])}")
        weight, rows = places[module]
        ours = weight.data[rows]
        if (up.shape[0], down.shape[1]) != ours.shape or up.shape[1] != down.shape[0]:
            raise DataError(f"{start.folder}: {module} does not fit the base's weight {list(ours.shape)}.")
        ours.copy_(ours.float() + start.scale(module) * (up.float() @ down.float()))


def _apart(down: Tensor, up: Tensor, own: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Give each matrix's factors of a layer fused there too: a block of a diagonal, else rows of B and all of A."""
    rank = own[0][0].shape[0]
    is_diagonal = down.shape[0] == rank * len(own) and len(own) > 1
    for index, rows in enumerate(up.split([own_up.shape[0] for _, own_up in own])):
        columns = slice(index * rank, (index + 1) * rank)
        if is_diagonal and rows.count_nonzero() == rows[:, columns].count_nonzero():
            yield down[columns], rows[:, columns]
        else:
            yield down, rows


def _pairs(tensors: dict[str, Tensor], folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Return both factors by module."""
    names = {name.removeprefix(PREFIX): require_finite(it, name=name, where=folder) for name, it in tensors.items()}
    modules = dict.fromkeys(name.removesuffix(DOWN).removesuffix(UP) for name in names)
    strange = [name for name in names if not name.endswith((DOWN, UP))]
    lone = [name for name in modules if f"{name}{DOWN}" not in names or f"{name}{UP}" not in names]
    if strange or lone or not modules:
        what = f"{strange[0]} is not a factor of a layer" if strange else f"{[*lone, 'it'][0]} lacks a factor"
        raise DataError(f"{folder / ADAPTER_WEIGHTS}: {what}; only plain LoRA of linear layers is known here.")
    return {name: (names[f"{name}{DOWN}"], names[f"{name}{UP}"]) for name in modules}


def export_peft(
    model: LanguageModel,
    adapter: Lora,
    *,
    settings: Mapping[str, Any],
    out: Path,
    base: str | None = None,
    base_type: str | None = None,
) -> list[str]:
    """Write an adapted model's adapters into a new folder, and return the adapted modules.

    `base` names the model, `base_type` its class where several compute it.

    Raises:
        ConfigurationError: No class computes this model, or `out` is taken.
        DataError: A factor is infinite or no number.
        EnvironmentProblem: The folder cannot be written.
    """
    model_type = str(export_config(settings, prefer=base_type)["model_type"])
    matrices = matrices_of(model, model_type)
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    for name, one in adapters_of(model):
        own = [(down.detach().cpu().contiguous(), up.detach().cpu().contiguous()) for down, up in one.factors()]
        if len(matrices[name]) == 1 and len(own) > 1:  # fused there too
            own = [(torch.cat([down for down, _ in own]), torch.block_diag(*(up for _, up in own)))]
        factors |= dict(zip(matrices[name], own, strict=True))
    ranks = {module: down.shape[0] for module, (down, _) in factors.items() if down.shape[0] != adapter.rank}
    power = 0.5 if adapter.rank_stabilized else 1
    config = {
        "base_model_name_or_path": base,
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "use_rslora": adapter.rank_stabilized,
        "target_modules": sorted(factors),
        "rank_pattern": ranks,
        "alpha_pattern": {module: adapter.scale * rank**power for module, rank in ranks.items()},  # of equal scale
        "fan_in_fan_out": model_type == "gpt2",
        "bias": "none",
        "inference_mode": True,
    }
    named = {
        f"{PREFIX}{name}{end}": it for name, pair in factors.items() for end, it in zip((DOWN, UP), pair, strict=True)
    }
    tensors = {name: require_finite(tensor, name=name, where="the adapter") for name, tensor in named.items()}

    def write(folder: Path) -> None:
        save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")

    make_folder(out, write)
    return [*factors]


def import_merged(base: ModelToExport, adapter: PeftFolder, out: Path) -> int:
    """Write the folder, as `import_folder` does; return the number of changed modules."""
    settings = complete(base.settings)
    settings = {name: value for name, value in settings.items() if name != "attention"}
    model = build(settings)
    model.to_empty(device="cpu")
    model.load_state_dict({name: base.weights(name) for name in model.state_dict()})
    add_changes(model, adapter)
    weights = {name: tensor.to(base.dtype_of(name)) for name, tensor in model.state_dict().items()}

    def write(folder: Path) -> None:
        tensors = [TensorToWrite(name, it.nbytes, lambda it=it: it) for name, it in weights.items()]
        facts = {"source": str(adapter.folder), "settings": settings}
        fill_import(folder, tensors, facts=facts, tokenizer=base.tokenizer, original=base.companions)

    with torch.no_grad():
        make_folder(out, write)
    return len(adapter.factors)
