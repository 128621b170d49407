"""FLOPs of a step's operators by part of the model, by torch's formulas, on real tensors or fake ones.

Each product belongs to the innermost module that runs, forward or backward. B batch, T tokens.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import (
    FlopCounterMode,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)
from torch.utils.module_tracker import ModuleTracker
from typing_extensions import override

from lmtrain.accounting.model.flop_audit import (
    EXPERTS,
    FEED_FORWARD,
    HEAD,
    PRODUCTS,
    PROJECTIONS,
    RECURRENT,
    SCORES,
    CountedOperators,
)
from lmtrain.accounting.model.flops import product_flops
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.models.own_model import LogitsModel
from lmtrain.simulate.live_memory import without_bytes
from lmtrain.simulate.measured_facts import fake_tensors

# Classes by name, those of transformers too.
KINDS: Final = (
    (re.compile("Experts|MoE|Moe"), EXPERTS),
    (re.compile("Mamba|DeltaNet|ShortConv|GatedConv"), RECURRENT),
    (re.compile("MLP|GLU|ReLU|GELU|FeedForward"), FEED_FORWARD),
)
WITH_WEIGHTS: Final = (torch.ops.aten.mm, torch.ops.aten.addmm)


FUSED_BACKWARD: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001
# torch has no formulas for attention on a CPU (2.13). By its backward formula one of five products is scores again.
ON_CPU: Final[dict[Any, Callable[..., int]]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),  # noqa: SLF001
    FUSED_BACKWARD: lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4]),
}


class GroupCounter(TorchDispatchMode):
    """Count the FLOPs of operators inside, by the group of the innermost module."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        groups, root = module_groups(model), type(model).__name__
        multiply = [name for name, one in model.named_modules() if any(each.ndim > 1 for each in one.parameters())]
        self._groups = {".".join(filter(None, (root, name))): groups[name] for name in multiply}
        self._tracker = ModuleTracker()
        self.flops, self.scores_again = Counter[str](), 0

    def __enter__(self) -> "GroupCounter":
        self._tracker.__enter__()
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._tracker.__exit__(*problem)

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        operator = func.overloadpacket
        if formula := ON_CPU.get(operator):
            flops = formula(*(one.shape if isinstance(one, Tensor) else one for one in args))
            self.scores_again += flops // 5 if operator is FUSED_BACKWARD else 0
        elif formula := flop_registry.get(operator):
            flops = formula(*args, **(kwargs or {}), out_val=made)
        else:
            return made
        # A block whose inputs lack a part of their gradient still counts as running: the innermost module decides, of
        # several one with a weight; a product with a weight outside of one is the head's.
        places = [(name.count("."), self._groups[name]) for name in self._tracker.parents & self._groups.keys()]
        group = max(places, key=lambda place: (place[0], place[1] != SCORES), default=(0, HEAD))[1]
        self.flops[HEAD if group == SCORES and operator in WITH_WEIGHTS else group] += flops
        return made


def module_groups(model: LanguageModel) -> dict[str, str]:
    """Return the group of each module by its name; a block's own products are those of its attention."""
    blocks, found = {id(one) for one in model.blocks}, dict[str, str]()
    for name, module in model.named_modules():
        parent = found[name.rpartition(".")[0]] if name else HEAD
        found[name] = _group(module, parent, is_block=id(module) in blocks)
    if isinstance(model, LogitsModel):  # its formula knows products from attention and no more
        return {name: SCORES if group == SCORES else PRODUCTS for name, group in found.items()}
    return found


def _group(module: nn.Module, parent: str, *, is_block: bool) -> str:
    if parent not in (HEAD, SCORES):
        return parent
    kind = next((group for pattern, group in KINDS if pattern.search(type(module).__name__)), None)
    if kind or (parent == HEAD and not is_block):
        return kind or HEAD
    has_matrix = any(one.ndim > 1 for one in module.parameters(recurse=False))
    return PROJECTIONS if has_matrix and not is_block else SCORES


def formula_products(model: LanguageModel, shape: ModelShape) -> dict[str, float]:
    """Return a token's FLOPs of products with weights by group, which sum to the plan's."""
    groups, found = module_groups(model), Counter[str]()
    for name, module in model.named_modules() if not isinstance(model, LogitsModel) else ():
        if isinstance(module, MixtureOfExperts):
            found[EXPERTS] += (6 if module.gate_up.requires_grad else 4) * module.num_product_parameters
        elif isinstance(module, nn.Linear):
            found[groups[name]] += (6 if module.weight.requires_grad else 4) * module.weight.numel()
    rest = groups[""]
    found[rest] += product_flops(shape) - found.total()
    return dict(found)


def count_operators(
    model: LanguageModel, tokens: Int[Tensor, "B T"], documents: Int[Tensor, "B T"] | None = None
) -> CountedOperators:
    """Run rows forward and back, with their loss."""
    with GroupCounter(model) as counted:
        model(tokens, tokens, CrossEntropy(), documents).objective.backward()
    return CountedOperators(by_group=dict(counted.flops), scores_again=counted.scores_again)


def count_fake_step(
    model: LanguageModel,
    shape: tuple[int, int],
    *,
    masks_documents: bool,
    recompute: Callable[[LanguageModel], LanguageModel] | None = None,
) -> CountedOperators:
    """Count all rows [B, T] of a step, of a model on meta; `recompute` None: nothing is computed again."""
    with fake_tensors():
        tokens = torch.zeros(shape, dtype=torch.int64)
        documents = torch.zeros(shape, dtype=torch.int32) if masks_documents else None
        found = count_operators(without_bytes(model), tokens, documents)
        if recompute is None:
            return found
        again = recompute(without_bytes(model))
        with FlopCounterMode(display=False, custom_mapping=dict(ON_CPU)) as counted:
            again(tokens, tokens, CrossEntropy(), documents).objective.backward()
    recomputed = counted.get_total_flops() - sum(found.by_group.values())
    return replace(found, recomputed=recomputed)
