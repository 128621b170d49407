"""Give loaded optimizer state its saved format: torch casts all of it to the weights' own."""

from typing import Any

import torch
from torch import Tensor


def restore_formats(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Put back every tensor of `saved` cast in loading: bf16 moments of fp32 weights, or the other way."""
    for group, saved_group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for parameter, key in zip(group["params"], saved_group["params"], strict=True):
            state: dict[str, Any] = optimizer.state.get(parameter, {})
            for name, loaded in state.items():
                kept = saved["state"][key][name]
                if isinstance(loaded, Tensor) and isinstance(kept, Tensor) and kept.dtype != loaded.dtype:
                    state[name] = kept.to(loaded.device)
