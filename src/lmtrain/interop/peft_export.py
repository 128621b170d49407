"""Write an adapter as PEFT does: adapter_config.json and adapter_model.safetensors, for PeftModel.from_pretrained.

A layer fused in transformers too gets one pair of factors for all of its matrices: A one below another,
B along a diagonal, and the rank of all together.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lmtrain.adapters.lora import Lora
from lmtrain.adapters.low_rank import LowRank, adapters_of
from lmtrain.interop.config_file import ADAPTER_CONFIG
from lmtrain.interop.finite import require_finite
from lmtrain.interop.hf_export import export_config
from lmtrain.interop.new_folder import make_folder
from lmtrain.interop.peft_names import DOWN, PREFIX, UP, WEIGHTS, Matrix, matrices_of, short_names
from lmtrain.models.base import LanguageModel

Factors = dict[str, tuple[Tensor, Tensor]]


def export_peft(
    model: LanguageModel, adapter: Lora, *, settings: Mapping[str, Any], out: Path, base: str | None = None
) -> list[str]:
    """Write an adapted model's adapters into a new folder, and return the adapted modules; `base` names the model.

    Raises:
        ConfigurationError: No class computes this model, or `out` is taken.
        DataError: A factor is infinite or no number.
        EnvironmentProblem: The folder cannot be written.
    """
    model_type = str(export_config(settings)["model_type"])
    matrices = matrices_of(model, model_type)
    factors: Factors = {}
    for name, one in adapters_of(model):
        factors |= _factors(one, matrices[name])
    every = [matrix.module for listed in matrices.values() for matrix in listed]
    config = _config(factors, adapter, targets=short_names([*factors], every), is_transposed=model_type == "gpt2")

    def write(folder: Path) -> None:
        tensors = {
            f"{PREFIX}{name}{end}": pair[i] for name, pair in factors.items() for i, end in enumerate((DOWN, UP))
        }
        checked = {name: require_finite(tensor, name=name, where="the adapter") for name, tensor in tensors.items()}
        save_file(checked, folder / WEIGHTS, metadata={"format": "pt"})
        (folder / ADAPTER_CONFIG).write_text(json.dumps({**config, "base_model_name_or_path": base}, indent=2) + "\n")

    make_folder(out, facts={}, write=write)
    return [*factors]


def _factors(adapter: LowRank, matrices: list[Matrix]) -> Factors:
    """Return their factors of one layer by module, contiguous copies."""
    own = [(down.detach().cpu().contiguous(), up.detach().cpu().contiguous()) for down, up in adapter.factors()]
    if len(matrices) == 1 and len(own) > 1:
        own = [(torch.cat([down for down, _ in own]), torch.block_diag(*(up for _, up in own)))]
    return {matrix.module: pair for matrix, pair in zip(matrices, own, strict=True)}


def _config(factors: Factors, adapter: Lora, *, targets: list[str], is_transposed: bool) -> dict[str, Any]:
    ranks = {module: down.shape[0] for module, (down, _) in factors.items() if down.shape[0] != adapter.rank}
    words = {module.rpartition(".")[2]: rank for module, rank in ranks.items()}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "use_rslora": adapter.rank_stabilized,
        "target_modules": targets,
        "rank_pattern": words,
        "alpha_pattern": {word: _alpha(adapter, rank) for word, rank in words.items()},
        "fan_in_fan_out": is_transposed,
        "bias": "none",
        "inference_mode": True,
    }


def _alpha(adapter: Lora, rank: int) -> float:
    """Return the alpha with which another rank has the adapter's scale."""
    return adapter.scale * (math.sqrt(rank) if adapter.rank_stabilized else rank)
