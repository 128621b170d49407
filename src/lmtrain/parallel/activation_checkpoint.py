"""Recompute activations in the backward pass instead of keeping them: arXiv 1604.06174."""

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint

from lmtrain.models.base import LanguageModel


def none(model: LanguageModel) -> LanguageModel:
    """Keep every activation."""
    return model


def every_block(model: LanguageModel) -> LanguageModel:
    """Keep only what enters each block; the model is changed in place, its parameter names are not."""
    for block in model.blocks:
        block.forward = _recomputed(block.forward)
    return model


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Bind one block's forward here and now.

    A closure over the loop variable would run the last block's in every layer, with wrong gradients and no error. A
    partial of `checkpoint` could not be compiled: the compiler skips torch's own functions unless ours call them.
    """

    def recompute(*arguments: Any) -> Any:
        return checkpoint(forward, *arguments, use_reentrant=False)

    return recompute
