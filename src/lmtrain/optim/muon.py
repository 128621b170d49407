"""Muon for the matrices inside the blocks, AdamW for all else, as one optimizer: https://kellerjordan.github.io/posts/muon.

An update of a matrix is its momentum made orthogonal, so every direction moves alike; matrices fused into one weight
move one by one. Those of one shape are stacked and orthogonalised together, and several ranks share the weights out
among themselves.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, final

import torch
from torch import Tensor, nn

from lmtrain.accounting.model.optimizer_state import FP32_BYTES, OptimizerState
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.ranges import SHARE
from lmtrain.errors import ConfigurationError
from lmtrain.optim.adamw_update import gradient_of, start_state, update, update_rounded
from lmtrain.optim.fused import choose_fused
from lmtrain.optim.fused_matrices import Matrices, fused_matrices, growth
from lmtrain.optim.group_steps import step_groups
from lmtrain.optim.needed_packages import has_compiler
from lmtrain.optim.orthogonalize import (
    QUINTICS,
    Quintic,
    mean_squares,
    mean_squares_shape,
    orthogonalize,
    row_scales,
)
from lmtrain.optim.parameter_groups import Group, sort_parameters
from lmtrain.optim.rounding import copy_rounded_, require_bf16
from lmtrain.optim.sharded import ALONE, Place, local, place_of
from lmtrain.optim.state_formats import restore_formats
from lmtrain.optim.work_sharing import Whole, share

Position = tuple[int, int]  # of a weight among those of a step, and of a matrix in it
Direction = Callable[[Tensor, tuple[Quintic, ...], torch.dtype, bool], tuple[Tensor, Tensor]]
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
    compile_update: compile the orthogonalisation, on a machine with a compiler; elsewhere it runs eagerly.
    fused: one AdamW kernel a group; None where the device has one.
    stochastic_rounding: bf16 weights are computed in fp32 and rounded by chance.

    Raises:
        ConfigurationError: A setting without effect, fused where it cannot be, or rounding of fp32 weights.
    """
    if cautious_decay and not weight_decay:
        msg = "optimizer.cautious_decay=true has no effect while optimizer.weight_decay=0; nearest valid: false."
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


def muon_facts(*, row_beta: float | None = None) -> OptimizerFacts:
    """Keep a momentum of matrices, fp32 sizes of rows for `row_beta`, and two moments of the rest."""
    return OptimizerFacts(
        state=OptimizerState(
            per_matrix_value=1,
            per_table_value=2,
            per_vector_value=2,
            bytes_per_long_edge=0 if row_beta is None else FP32_BYTES,
        ),
        update="spectrum",
        ranges={"row_beta": SHARE},
        dials_depth=True,
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
    ) -> None:
        super().__init__(groups, {})
        self._fused = fused or {}
        self._quintics = quintics
        self._dtype = dtype
        self._share_work = share_work
        self._direction: Direction = _direction
        if compiled and has_compiler():
            self._direction = torch.compile(_direction, dynamic=False)

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
            self._step_alike(some, place, group, noise)

    def _step_alike(
        self, parameters: list[nn.Parameter], place: Place, group: Group, noise: torch.Generator | None
    ) -> None:
        sharing, momentum, row_beta = share(parameters, place), group["momentum"], group["row_beta"]
        fused = [*map(self._fused.get, parameters)]
        states = [self.state[parameter] or self._start_muon(parameter, group) for parameter in parameters]
        sources: list[Tensor] = []
        for parameter, state in zip(parameters, states, strict=True):
            gradient, average = local(gradient_of(parameter)), local(state["momentum"])
            average.lerp_(gradient, 1 - momentum)
            sources.append(torch.lerp(gradient, average, momentum))
        directions, sizes = self._orthogonalize(sharing.gather(sources), fused)
        parts = sharing.spread(directions, dtype=self._dtype)
        scales: list[Tensor | None] = [None] * len(parts)
        if row_beta is not None:
            shapes = [state["mean_squares"].shape for state in states]
            for i, now in enumerate(sharing.publish(sizes, shapes=shapes)):
                even = row_scales if (matrices := fused[i]) is None else matrices.row_scales
                scale, running = even(now, states[i]["mean_squares"], beta=row_beta)
                states[i]["mean_squares"].copy_(running)
                scales[i] = sharing.part(scale, i)
        for parameter, part, scale, matrices in zip(parameters, parts, scales, fused, strict=True):
            direction = part if scale is None else part * scale
            factor = growth(*parameter.shape[-2:]) if matrices is None else matrices.growth
            _move(parameter, direction, group, noise, factor=factor)

    def _orthogonalize(self, sources: Whole, fused: Sequence[Matrices | None]) -> tuple[Whole, Whole]:
        """Return directions, and the mean squares of their rows: all matrices of one shape at once."""
        stacks: defaultdict[tuple[torch.Size, bool], list[tuple[Position, Tensor]]] = defaultdict(list)
        for i, source in sources.items():
            matrices = fused[i]
            for j, matrix in enumerate((source,) if matrices is None else matrices.split(source)):
                stacks[matrix.shape, _by_rows(matrix, matrices)].append(((i, j), matrix))
        directions: dict[Position, Tensor] = {}
        sizes: dict[Position, Tensor] = {}
        for (shape, by_rows), found in stacks.items():
            positions = [position for position, _ in found]
            stack = torch.stack([matrix for _, matrix in found]).flatten(0, -3)  # experts are stacks already
            stacked = (len(found), *shape[:-2])
            direction, size = self._direction(stack, self._quintics, self._dtype, by_rows)
            directions |= zip(positions, direction.unflatten(0, stacked), strict=True)
            sizes |= zip(positions, size.unflatten(0, stacked), strict=True)
        for i in sources:
            if (matrices := fused[i]) is not None:
                places = [(i, j) for j in range(len(matrices.rows))]
                directions[i, 0] = matrices.join_updates([directions[place] for place in places])
                sizes[i, 0] = matrices.join([sizes[place] for place in places])
        return {i: directions[i, 0] for i in sources}, {i: sizes[i, 0] for i in sources}

    def _start_muon(self, parameter: nn.Parameter, group: Group) -> dict[str, Tensor]:
        state = {"momentum": torch.zeros_like(parameter)}
        if group["row_beta"] is not None:
            *stack, num_rows, num_columns = parameter.shape
            by_rows = _by_rows(parameter, self._fused.get(parameter))
            means_shape = (*stack, *mean_squares_shape(num_rows, num_columns, by_rows=by_rows))
            state["mean_squares"] = torch.zeros(means_shape, device=parameter.device)
        self.state[parameter] = state
        return state


def _direction(
    sources: Tensor,
    quintics: tuple[Quintic, ...],
    dtype: torch.dtype,
    by_rows: bool,  # noqa: FBT001  # compiled: positional arguments alone
) -> tuple[Tensor, Tensor]:
    directions = orthogonalize(sources, quintics=quintics, dtype=dtype)
    return directions, mean_squares(directions, by_rows=by_rows)


def _by_rows(weight: Tensor, fused: Matrices | None) -> bool:
    """Tell whether rows are evened, rather than columns: the longer side's, and of fused matrices always."""
    return fused is not None or weight.shape[-2] >= weight.shape[-1]


def _move(
    parameter: nn.Parameter, direction: Tensor, group: Group, noise: torch.Generator | None, *, factor: float
) -> None:
    """Decay and move this rank's part of a matrix, in fp32 where it is rounded by chance afterwards."""
    kept = local(parameter)
    weights = kept if noise is None else kept.float()
    if group["weight_decay"]:
        rate = group["lr"] * group["weight_decay"]
        if group["cautious_decay"]:
            weights.sub_(torch.where(weights * direction > 0, weights, 0), alpha=rate)
        else:
            weights.mul_(1 - rate)
    weights.sub_(direction, alpha=group["lr"] * factor)
    if weights.dtype != kept.dtype:
        copy_rounded_(kept, weights, generator=noise)
