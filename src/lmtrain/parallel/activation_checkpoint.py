"""Recompute activations in the backward pass instead of keeping them: arXiv 1604.06174, selectively 2205.05198.

Every option is model -> model, changes blocks in place, and leaves names of parameters and gradients as they are,
eagerly and compiled.
"""

from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from lmtrain.accounting.options.parts import RecomputeFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.models.base import LanguageModel
from lmtrain.models.mixture_of_experts import MixtureOfExperts

ALL_REDUCE_MEAN = "lmtrain.all_reduce_mean.default"  # a number per expert, or one more message to wait for
ContextPair = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

# The most compute for the bytes kept: products with weights, and fused attention. Products of two activations are not
# among them, for plain attention makes [T, T] of each. By name: not every torch has every one.
KEPT_OPERATIONS = frozenset(
    {
        "aten.mm.default",
        "aten.addmm.default",
        "aten._scaled_mm.default",
        "aten._grouped_mm.default",
        "aten.max.default",  # one number: the scale of an fp8 operand, or a pass over it again
        ALL_REDUCE_MEAN,
        "lmtrain.grouped_linear.default",
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default",
        "flash_attn._flash_attn_forward.default",
        "flex_attention",
    }
)


def none(model: LanguageModel) -> LanguageModel:
    """Keep every activation."""
    return model


NONE_FACTS: Final = RecomputeFacts(recomputes=False, is_cut=True, share=0.0)


def auto(model: LanguageModel) -> LanguageModel:
    """Keep every activation, where no plan has chosen."""
    return model


AUTO_FACTS: Final = RecomputeFacts(recomputes=False, is_cut=True, share=0.0, chooses=True)


def every_block(model: LanguageModel) -> LanguageModel:
    """Keep only each block's input."""
    for block in model.blocks:
        _recompute(block)
    return model


EVERY_BLOCK_FACTS: Final = RecomputeFacts()


def selective(model: LanguageModel) -> LanguageModel:
    """Keep each block's input and the results of its matrix products and fused attention; recompute the cheap rest."""
    for block in model.blocks:
        _recompute(block, context_fn=_selective_contexts)
    return model


SELECTIVE_FACTS: Final = RecomputeFacts(is_cut=True, share=0.0)


def memory_budget_facts(*, fraction: float = 0.5) -> RecomputeFacts:
    """Compute again the blocks without kept activations."""
    return RecomputeFacts(is_cut=True, share=1.0 - fraction)


def memory_budget(model: LanguageModel, *, fraction: float) -> LanguageModel:
    """Keep all activations of this fraction of the blocks, spread evenly, and of the others only their input.

    Whole blocks: eager and compiled runs keep the same, of a size known to the plan.
    """
    usual = "recompute=every_block, which keeps none" if fraction <= 0 else "recompute=none, which keeps all"
    require_number("recompute.fraction", fraction, above=0, below=1, usual=usual)
    for index, block in enumerate(model.blocks):
        if not is_kept(index, fraction=fraction):
            _recompute(block)
    return model


def is_kept(index: int, *, fraction: float) -> bool:
    """Return whether a block, from 0, keeps its activations: floor(n * fraction) of the first n blocks do."""
    return int((index + 1) * fraction) > int(index * fraction)


def _recompute(block: nn.Module, **settings: Any) -> None:
    """Bind one block's forward here and now.

    A closure over the loop variable would run the last block's in every layer, with wrong gradients and no error. A
    partial of `checkpoint` could not be compiled: the compiler skips torch's own functions unless ours call them.
    """
    forward: Callable[..., Any] = block.forward
    experts = [layer for layer in block.modules() if isinstance(layer, MixtureOfExperts)]

    def recompute(*arguments: Any, **named: Any) -> Any:
        if not settings and any(layer.average_shares for layer in experts):
            return checkpoint(forward, *arguments, use_reentrant=False, context_fn=_message_contexts, **named)
        return checkpoint(forward, *arguments, use_reentrant=False, **settings, **named)

    block.forward = recompute


def _keep(
    operations: Set[str], context: SelectiveCheckpointContext, operation: Any, *_: Any, **__: Any
) -> CheckpointPolicy:
    del context
    return CheckpointPolicy.MUST_SAVE if str(operation) in operations else CheckpointPolicy.PREFER_RECOMPUTE


_selective_contexts: Callable[[], ContextPair] = partial(
    create_selective_checkpoint_contexts, partial(_keep, KEPT_OPERATIONS)
)
_message_contexts: Callable[[], ContextPair] = partial(
    create_selective_checkpoint_contexts, partial(_keep, frozenset({ALL_REDUCE_MEAN}))
)
