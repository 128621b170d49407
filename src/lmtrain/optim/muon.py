"""Muon for the matrices inside the blocks, AdamW for all else, as one optimizer: https://kellerjordan.github.io/posts/muon.

An update of a matrix is its momentum made orthogonal, so every direction moves alike. Matrices of one shape are
stacked and orthogonalised together.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as adamw_step

from lmtrain.optim.fused import can_fuse
from lmtrain.optim.orthogonalize import QUINTICS, Quintic, even_rows, mean_squares_shape, orthogonalize
from lmtrain.optim.parameter_groups import sort_parameters
from lmtrain.optim.sharded import local, part_of, whole

Group = dict[str, Any]
Direction = Callable[[Tensor, Tensor | None, tuple[Quintic, ...], float | None], tuple[Tensor, Tensor | None]]


def muon(
    model: nn.Module,
    *,
    lr: float,
    embedding_lr: float,
    head_lr: float,
    vector_lr: float,
    momentum: float = 0.95,
    initial_momentum: float | None = None,
    momentum_warmup_steps: int = 0,
    row_beta: float | None = None,
    iteration: Literal["polar_express", "newton_schulz"] = "newton_schulz",
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    compile_update: bool = False,
) -> torch.optim.Optimizer:
    """Build Muon over the matrices inside `model.blocks` at `lr` and AdamW over embeddings, head and vectors.

    momentum rises linearly from `initial_momentum` (None: it starts where it ends) over `momentum_warmup_steps`.
    row_beta: decay of the running row sizes by which updates are evened; None leaves them as they are.
    weight_decay: decoupled, of the matrices only.
    compile_update: compile the orthogonalisation, on a machine that has a compiler; elsewhere it runs eagerly.
    """
    kinds = sort_parameters(model)
    momenta = {
        "momentum": momentum,
        "initial_momentum": momentum if initial_momentum is None else initial_momentum,
        "momentum_warmup_steps": momentum_warmup_steps,
        "num_steps": 0,
    }
    matrices = {"kind": "muon", "row_beta": row_beta, "weight_decay": weight_decay, **momenta}
    others = {"kind": "adamw", "beta1": beta1, "beta2": beta2, "eps": eps}
    groups: list[Group] = [
        {"name": "matrices", "params": list(kinds.matrices), "lr": lr, **matrices},
        {"name": "embeddings", "params": list(kinds.embeddings), "lr": embedding_lr, **others},
        {"name": "head", "params": list(kinds.head), "lr": head_lr, **others},
        {"name": "vectors", "params": list(kinds.vectors), "lr": vector_lr, **others},
    ]
    return Muon([group for group in groups if group["params"]], quintics=QUINTICS[iteration], compiled=compile_update)


class Muon(torch.optim.Optimizer):
    """Muon groups and AdamW groups side by side; `muon` builds them.

    State is kept per parameter, so that a checkpoint does not depend on how many matrices were stacked or on the
    number of ranks. Nothing in a step waits for the device.
    """

    def __init__(self, groups: list[Group], *, quintics: tuple[Quintic, ...], compiled: bool = False) -> None:
        super().__init__(groups, {})
        self._quintics = quintics
        self._direction: Direction = _direction
        if compiled and _has_compiler():
            self._direction = torch.compile(_direction, dynamic=False)
        for group in self.param_groups:
            if group["kind"] == "adamw":  # `fused` also tells load_state_dict to keep step counts on the device
                group["fused"] = can_fuse(group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient; return what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["kind"] == "adamw":
                self._step_adamw(parameters, group)
            else:
                self._step_muon(parameters, group)
        return loss

    def _step_adamw(self, parameters: list[nn.Parameter], group: Group) -> None:
        states = [self.state[parameter] or self._start_adamw(parameter) for parameter in parameters]
        adamw_step(
            [local(parameter) for parameter in parameters],
            [local(_gradient(parameter)) for parameter in parameters],
            [local(state["exp_avg"]) for state in states],
            [local(state["exp_avg_sq"]) for state in states],
            [],
            [state["step"] for state in states],
            foreach=False if group["fused"] else None,
            fused=group["fused"],
            amsgrad=False,
            beta1=group["beta1"],
            beta2=group["beta2"],
            lr=group["lr"],
            weight_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )

    def _start_adamw(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        self.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        return self.state[parameter]

    def _step_muon(self, parameters: list[nn.Parameter], group: Group) -> None:
        stacks: defaultdict[tuple[Any, ...], list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            stacks[parameter.shape, parameter.dtype, parameter.device].append(parameter)
        momentum = _momentum(group)
        for stack in stacks.values():
            self._step_stack(stack, group, momentum)
        group["num_steps"] += 1

    def _step_stack(self, parameters: list[nn.Parameter], group: Group, momentum: float) -> None:
        states = [self.state[parameter] or self._start_muon(parameter, group) for parameter in parameters]
        sources: list[Tensor] = []
        for parameter, state in zip(parameters, states, strict=True):
            gradient, average = local(_gradient(parameter)), local(state["momentum"])
            average.lerp_(gradient, 1 - momentum)
            sources.append(whole(torch.lerp(gradient, average, momentum), parameter))
        row_beta = group["row_beta"]
        *_, num_rows, num_columns = parameters[0].shape
        stacked = (len(sources), *parameters[0].shape[:-2])  # experts are stacks already
        mean_squares = None
        if row_beta is not None:
            mean_squares = torch.stack([state["mean_squares"] for state in states]).flatten(0, -3)
        matrices = torch.stack(sources).flatten(0, -3)
        directions, mean_squares = self._direction(matrices, mean_squares, self._quintics, row_beta)
        directions = directions.unflatten(0, stacked)
        lr = group["lr"] * max(1.0, num_rows / num_columns) ** 0.5
        for i, (parameter, state) in enumerate(zip(parameters, states, strict=True)):
            weights = local(parameter)
            if group["weight_decay"]:
                weights.mul_(1 - group["lr"] * group["weight_decay"])
            weights.sub_(part_of(directions[i], parameter), alpha=lr)
            if mean_squares is not None:
                state["mean_squares"].copy_(mean_squares.unflatten(0, stacked)[i])

    def _start_muon(self, parameter: nn.Parameter, group: Group) -> dict[str, Tensor]:
        state = {"momentum": torch.zeros_like(parameter)}
        if group["row_beta"] is not None:
            *stack, num_rows, num_columns = parameter.shape
            means_shape = (*stack, *mean_squares_shape(num_rows, num_columns))
            state["mean_squares"] = torch.zeros(means_shape, device=parameter.device)
        self.state[parameter] = state
        return state


def _direction(
    sources: Tensor, mean_squares: Tensor | None, quintics: tuple[Quintic, ...], row_beta: float | None
) -> tuple[Tensor, Tensor | None]:
    directions = orthogonalize(sources, quintics=quintics)
    if mean_squares is None or row_beta is None:
        return directions, None
    return even_rows(directions, mean_squares, beta=row_beta)


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient


def _momentum(group: Group) -> float:
    progress = min(1.0, group["num_steps"] / group["momentum_warmup_steps"]) if group["momentum_warmup_steps"] else 1.0
    return group["initial_momentum"] + (group["momentum"] - group["initial_momentum"]) * progress


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in ("c++", "g++", "clang++"))
