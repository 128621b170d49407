"""The closure that `Optimizer.step` may be given: it computes the loss anew."""

from collections.abc import Callable
from typing import Any

import torch


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Return what the closure returns, computed with gradients also where they are off; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
