"""The matrices behind our linear layers, by their names in PEFT's files: theirs stand apart where ours are fused.

In both, a matrix [O, I] changes by scale * B A, A [R, I] and B [O, R]; GPT-2's transposed weights change nothing in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lmtrain.adapters.low_rank import layers_of
from lmtrain.interop.own_config import OWN_PREFIX, OWN_TYPE
from lmtrain.interop.tensor_map import map_tensors
from lmtrain.models.base import LanguageModel

WEIGHTS: Final = "adapter_model.safetensors"
PREFIX: Final = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
WEIGHT: Final = ".weight"


@dataclass(frozen=True)
class Matrix:
    """One of theirs: its module's name, and its rows in our layer's weight."""

    module: str
    rows: tuple[int, int]


def matrices_of(model: LanguageModel, model_type: str) -> dict[str, list[Matrix]]:
    """Return the matrices of each linear layer of the blocks, in the order of their rows, by the layer's name."""
    layers = layers_of(model)
    found: dict[str, list[Matrix]] = {}
    for tensor in map_tensors(model, model_type):
        name = tensor.name.removesuffix(WEIGHT)
        if name in layers and tensor.name.endswith(WEIGHT):
            parts = [(part.name.removesuffix(WEIGHT), part.region) for part in tensor.parts]
            found[name] = [Matrix(module, _rows(region, tensor.shape[0])) for module, region in parts]
    return found


def type_of(model: LanguageModel, modules: Iterable[str]) -> str:
    """Return the kind of names in a file of PEFT: of our own code, or of a class of transformers."""
    own = {f"{OWN_PREFIX}{name}" for name in layers_of(model)}
    return OWN_TYPE if own & {*modules} else "llama"  # the family's names, but for experts, of which none is adapted


def short_names(adapted: Sequence[str], every: Sequence[str]) -> list[str]:
    """Return the last words of modules' names where these mean them alone, else the whole names."""
    words = {name.rpartition(".")[2] for name in adapted}
    meant = {name for name in every if name.rpartition(".")[2] in words}
    return sorted(words) if meant == {*adapted} else sorted(adapted)


def pattern_value(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """Return a module's own value of rank_pattern or alpha_pattern, keyed by ends of names; else the default."""
    return next((value for key, value in patterns.items() if f".{module}".endswith(f".{key}")), default)


def _rows(region: Sequence[Any], num_rows: int) -> tuple[int, int]:
    start, stop, _ = region[0].indices(num_rows) if region else (0, num_rows, 1)
    return start, stop
