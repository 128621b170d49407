"""Recompute activations in the backward pass instead of keeping them: arXiv 1604.06174."""

import functools

from torch.utils.checkpoint import checkpoint

from lmtrain.models.base import LanguageModel


def none(model: LanguageModel) -> LanguageModel:
    """Keep every activation."""
    return model


def every_block(model: LanguageModel) -> LanguageModel:
    """Keep only what enters each block; the model is changed in place, its parameter names are not.

    Each block's own forward is bound here and now: a closure over the loop variable would run the last block's in
    every layer, with gradients that are wrong and no error.
    """
    for block in model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return model
