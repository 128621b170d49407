"""Muon for the matrices inside the blocks, AdamW for all else, as one optimizer: https://kellerjordan.github.io/posts/muon.

An update of a matrix is its momentum made orthogonal, so every direction moves alike; matrices fused into one weight
move one by one. Those of one shape are stacked and orthogonalised together, and several ranks share the weights out
among themselves; a rank with all of them works through buckets.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, Final, Literal, final

import torch
from torch import Tensor, nn

from lmtrain.accounting.model.optimizer_state import (
    BF16_BYTES,
    FP32_BYTES,
    MATRIX_BUCKET_VALUES,
    MatrixWork,
    OptimizerState,
)
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.ranges import SHARE
from lmtrain.errors import ConfigurationError
from lmtrain.missing_package import has_compiler
from lmtrain.models.base import unchanged
from lmtrain.optim.adamw_update import (
    copy_rounded_,
    gradient_of,
    require_bf16,
    restore_formats,
    start_state,
    step_groups,
    update,
    update_rounded,
)
from lmtrain.optim.distributed_muon import Sharing, share
from lmtrain.optim.fused import choose_fused
from lmtrain.optim.muon_update import (
    QUINTICS,
    Matrices,
    Quintic,
    Recipe,
    StepRates,
    begin,
    buckets,
    by_rows,
    direct,
    even,
    fused_matrices,
    growth,
    move,
    update_all,
)
from lmtrain.optim.parameter_groups import Group, sort_parameters
from lmtrain.optim.sharded import ALONE, Place, local, place_of

FORMATS: Final = {"bf16": torch.bfloat16, "fp32": torch.float32}


def muon(
    model: nn.Module,
    *,
    lr: float,
    embedding_lr: float,
    head_lr: float,
    vector_lr: float,
    momentum: float = 0.95,
    row_beta: float | None = None,
    iteration: Literal["polar_express", "newton_schulz"] = "newton_schulz",
    iteration_dtype: Literal["bf16", "fp32"] = "bf16",
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    cautious_decay: bool = False,
    share_work: bool = True,
    compile_update: bool = False,
    fused: bool | None = None,
    stochastic_rounding: bool = False,
) -> torch.optim.Optimizer:
    """Build Muon over the matrices inside `model.blocks` at `lr` and AdamW over embeddings, head and vectors.

    row_beta: decay of the running row sizes, for evening the updates; None leaves them as they are.
    iteration_dtype: format of its products; bf16 amplifies roundings of gradients, such as other ranks have.
    weight_decay: decoupled, of the matrices only.
    cautious_decay: decay only weights shrunk by their update too (https://arxiv.org/abs/2510.12402).
    share_work: each rank orthogonalises a share of the matrices; without, every rank all of them.
    compile_update: compile the matrices' update, all of it where a rank has them whole; without a compiler it is eager.
    fused: one AdamW kernel a group; None where the device has one.
    stochastic_rounding: bf16 weights are computed in fp32 and rounded by chance.
    """
    if cautious_decay and not weight_decay:
        msg = "optimizer.cautious_decay=true has no effect while optimizer.weight_decay=0. Did you mean false?"
        raise ConfigurationError(msg)
    kinds = sort_parameters(model)
    if stochastic_rounding:
        require_bf16(model.parameters())
    decay = {"weight_decay": weight_decay, "cautious_decay": cautious_decay}
    rounding = {"stochastic_rounding": stochastic_rounding, "num_steps": 0}
    matrices = {"kind": "muon", "momentum": momentum, "row_beta": row_beta, **decay, **rounding}
    others = {"kind": "adamw", "betas": (beta1, beta2), "eps": eps, "weight_decay": 0.0, **rounding}
    groups: list[Group] = [
        {"name": "matrices", "params": list(kinds.matrices), "lr": lr, **matrices},
        {"name": "embeddings", "params": list(kinds.embeddings), "lr": embedding_lr, **others},
        {"name": "head", "params": list(kinds.head), "lr": head_lr, **others},
        {"name": "vectors", "params": list(kinds.vectors), "lr": vector_lr, **others},
    ]
    groups = [group for group in groups if group["params"]]
    for group in groups:
        if group["kind"] == "adamw":  # `fused` also makes load_state_dict keep step counts on the device
            group["fused"] = choose_fused(group["params"], wanted=fused)
    return Muon(
        groups,
        fused=fused_matrices(model),
        quintics=QUINTICS[iteration],
        dtype=FORMATS[iteration_dtype],
        share_work=share_work,
        compiled=compile_update,
    )


def muon_facts(*, row_beta: float | None = None, share_work: bool = True) -> OptimizerFacts:
    """Keep a momentum of matrices, fp32 sizes of rows for `row_beta`, and two moments of the rest."""
    return OptimizerFacts(
        state=OptimizerState(
            per_matrix_value=1,
            per_table_value=2,
            per_vector_value=2,
            bytes_per_long_edge=0 if row_beta is None else FP32_BYTES,
            matrix_work=MatrixWork(
                source_bytes=FP32_BYTES,
                product_bytes=5.5,  # a Llama's, with half of its values in the stack of gates and ups
                stack_bytes=FP32_BYTES + 4 * BF16_BYTES,  # two of a square's products and two Gram matrices
                direction_bytes=BF16_BYTES,
                is_shared=share_work,
            ),
        ),
        update="spectrum",
        ranges={"row_beta": SHARE},
        dials_depth=True,
        usual_rates=(0.005, 0.3),
    )


@final
class Muon(torch.optim.Optimizer):
    """Muon groups and AdamW groups side by side; `muon` builds them.

    State is kept per parameter: a checkpoint does not depend on the number of stacked matrices or of ranks. Nothing in
    a step waits for the device.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        quintics: tuple[Quintic, ...],
        fused: Mapping[Tensor, Matrices] | None = None,
        dtype: torch.dtype = torch.bfloat16,
        share_work: bool = True,
        compiled: bool = False,
        bucket_values: int = MATRIX_BUCKET_VALUES,
    ) -> None:
        super().__init__(groups, {})
        self._fused = fused or {}
        self._quintics = quintics
        self._dtype = dtype
        self._share_work = share_work
        self._bucket_values = bucket_values
        self._is_compiled = compiled and has_compiler()
        if self._is_compiled:
            from torch._dynamo import config  # seconds to import, spared to a run without compilation

            num_graphs = 2 * len({parameter.shape for group in groups for parameter in group["params"]})
            config.recompile_limit = max(config.recompile_limit, num_graphs)  # torch ends a run at the ninth by default
        compiler: Any = partial(torch.compile, fullgraph=True, dynamic=False) if self._is_compiled else unchanged
        self._update_all: Callable[..., None] = compiler(update_all)
        self._begin: Callable[..., list[Tensor]] = compiler(begin)
        self._direct: Callable[..., tuple[list[Tensor], list[Tensor]]] = compiler(direct)
        self._move: Callable[..., None] = compiler(move)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter with a gradient; return the closure's loss."""
        return step_groups(self, closure, self._step_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from saved state, in the formats it was saved in."""
        super().load_state_dict(state_dict)
        restore_formats(self, state_dict)

    def _step_group(self, parameters: list[nn.Parameter], group: Group, noise: torch.Generator | None) -> None:
        step = self._step_adamw if group["kind"] == "adamw" else self._step_muon
        step(parameters, group, noise)

    def _step_adamw(self, parameters: list[nn.Parameter], group: Group, noise: torch.Generator | None) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = start_state(parameter, fused=group["fused"])
        states = [self.state[parameter] for parameter in parameters]
        if noise is None:
            update(parameters, states, group)
        else:
            update_rounded(parameters, states, group, noise=noise)

    def _step_muon(self, parameters: list[nn.Parameter], group: Group, noise: torch.Generator | None) -> None:
        alike: defaultdict[tuple[Place, torch.dtype, torch.device], list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            place = place_of(parameter) if self._share_work else ALONE
            alike[place, parameter.dtype, parameter.device].append(parameter)
        for (place, _, _), some in alike.items():
            for bucket in buckets(some, num_values=self._bucket_values) if place == ALONE else [some]:
                self._step_alike(bucket, place, group, noise)

    def _step_alike(
        self, parameters: list[nn.Parameter], place: Place, group: Group, noise: torch.Generator | None
    ) -> None:
        states = [self._state_of_matrix(parameter, group) for parameter in parameters]
        gradients = [local(gradient_of(parameter)) for parameter in parameters]
        averages = [local(state["momentum"]) for state in states]
        recipe = Recipe(self._quintics, self._dtype, group["row_beta"], group["cautious_decay"])
        squares = [] if recipe.row_beta is None else [state["mean_squares"] for state in states]
        fused = [*map(self._fused.get, parameters)]
        factors = [
            growth(*parameter.shape[-2:]) if matrices is None else matrices.growth
            for parameter, matrices in zip(parameters, fused, strict=True)
        ]
        rates = _rates(group)
        if self._is_compiled:
            rates = rates.as_tensors()
        kept = [local(parameter) for parameter in parameters]
        if noise is None and place == ALONE and all(map(is_, kept, parameters)):
            self._update_all(kept, gradients, averages, squares, fused, factors, rates, recipe)
            return
        sources = self._begin(gradients, averages, rates.momentum)
        directions, scales = self._shared(sources, share(parameters, place), squares, fused, recipe)
        if noise is None:
            self._move(kept, directions, scales, factors, rates, recipe)
            return
        for weight, direction, scale, factor in zip(kept, directions, scales, factors, strict=True):
            exact = weight.float()
            move([exact], [direction], [scale], [factor], _rates(group), recipe)
            copy_rounded_(weight, exact, generator=noise)

    def _shared(
        self,
        sources: Sequence[Tensor],
        sharing: Sharing,
        squares: Sequence[Tensor],
        fused: Sequence[Matrices | None],
        recipe: Recipe,
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return this rank's parts of directions and of rows' factors, each made on one rank of all."""
        mine = sharing.gather(sources)
        found, found_sizes = self._direct([*mine.values()], [fused[i] for i in mine], recipe) if mine else ([], [])
        directions = sharing.spread(dict(zip(mine, found, strict=True)), dtype=recipe.dtype)
        if recipe.row_beta is None:
            return directions, [None] * len(directions)
        by_position = dict(zip(mine, found_sizes, strict=True))
        sizes = sharing.publish(by_position, shapes=[one.shape for one in squares])
        scales = even(sizes, squares, fused, recipe.row_beta)
        return directions, [scale if scale is None else sharing.part(scale, i) for i, scale in enumerate(scales)]

    def _state_of_matrix(self, parameter: nn.Parameter, group: Group) -> dict[str, Tensor]:
        """Return a matrix's state, with everything that is new now, as after a resume with `row_beta`."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        if group["row_beta"] is not None and "mean_squares" not in state:
            *stack, num_rows, num_columns = parameter.shape
            is_by_rows = by_rows(parameter, self._fused.get(parameter))
            means_shape = (num_rows, 1) if is_by_rows else (1, num_columns)
            state["mean_squares"] = torch.zeros(*stack, *means_shape, device=parameter.device)
        return state


def _rates(group: Group) -> StepRates:
    decay = group["lr"] * group["weight_decay"] if group["weight_decay"] else None
    return StepRates(group["lr"], group["momentum"], decay)
