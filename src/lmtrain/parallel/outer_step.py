"""The outer step of DiLoCo: workers train apart, and the mean of their weights' deltas moves the global weights.

A worker's delta is the global weights minus its own. The mean of all deltas is the gradient of an outer SGD with
Nesterov momentum, and every worker goes on from its result (arXiv 2311.08105, algorithm 1). Fragments of the model meet
in turns (Streaming DiLoCo, arXiv 2501.18512 section 2.2), without its overlap of messages and compute.

In fp32 the mean is one all-reduce. In bf16 each rank is sent its slice of every other rank's rounded values, takes
their mean in fp32, and sends that, rounded again, to all: as many bytes as an all-reduce of the format, and the same
result on every rank. W ranks, N values, n values of a slice.
"""

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, distributed
from torch.nn import Parameter
from torch.optim import SGD

from lmtrain.accounting.options.outer_settings import DeltaFormat
from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel

# Under its newer name from torch 2.13 on, where the older one warns.
gather_one: Any = vars(distributed).get("all_gather_single") or vars(distributed)["all_gather_into_tensor"]


def mean_over_ranks(values: Tensor, delta: DeltaFormat) -> tuple[Tensor, float]:
    """Return the mean of fp32 values [N] over all ranks, and the bytes sent by this rank; every rank must call it."""
    num_ranks = distributed.get_world_size()
    if delta == "fp32":
        distributed.all_reduce(values)
        return values / num_ranks, 2 * (num_ranks - 1) / num_ranks * values.nbytes
    slices = torch.nn.functional.pad(values, (0, -len(values) % num_ranks)).view(num_ranks, -1)  # [W, n]
    rounded = slices.bfloat16().view(torch.uint8)
    received = torch.empty_like(rounded)
    distributed.all_to_all_single(received, rounded)
    mean = received.view(torch.bfloat16).float().mean(0).bfloat16().view(torch.uint8)
    means = torch.empty_like(rounded)
    gather_one(means.view(-1), mean)
    return means.view(torch.bfloat16).float().flatten()[: len(values)], 2 * (num_ranks - 1) * mean.nbytes


@final
class OuterStep:
    """Global weights and outer momentum in fp32, next to the weights of this worker.

    `eval` lets the model have the global weights, and `train` this worker's again. `sent_bytes` have left this rank.
    """

    def __init__(self, *, every_steps: int, num_fragments: int, lr: float, momentum: float, delta: DeltaFormat) -> None:
        """Let each of the fragments meet once in `every_steps` steps."""
        self._every_steps, self._num_fragments = every_steps, num_fragments
        self._lr, self._momentum = lr, momentum
        self._delta: DeltaFormat = delta
        self._global: dict[Parameter, Tensor] = {}
        self._own: list[Tensor] | None = None  # while the model has the global weights
        self.sent_bytes = 0.0

    def start(self, model: LanguageModel) -> None:
        """Begin with the weights as they are, the same on every rank."""
        self._fragments = fragments_of(model, num_fragments=self._num_fragments)
        self._global = {weight: weight.detach().clone() for fragment in self._fragments for weight in fragment}
        self._own = None
        self._sgd = SGD(self._global.values(), lr=self._lr, momentum=self._momentum, nesterov=self._momentum > 0)

    @torch.no_grad()
    def after(self, step: int, *, is_last: bool = False) -> None:
        """Let the fragments due after step number `step`, counted from 0, meet; at a run's last step all."""
        for number, fragment in enumerate(self._fragments):
            offset = number * self._every_steps // self._num_fragments
            if is_last or (step + 1 + offset) % self._every_steps == 0:
                self._meet(fragment)

    def global_of(self, value: Tensor) -> Tensor:
        """Return the global weights in place of a weight of this worker, any other value as it is."""
        return self._global.get(value, value.detach()) if isinstance(value, Parameter) else value.detach()

    @torch.no_grad()
    def eval(self) -> None:
        """Let the model have the global weights, and keep this worker's aside."""
        if self._own is None:
            self._own = [weight.detach().clone() for weight in self._global]
            _fill(self._global, self._global.values())

    @torch.no_grad()
    def train(self) -> None:
        """Let the model have this worker's weights."""
        if self._own is not None:
            _fill(self._global, self._own)
            self._own = None

    def momentum(self) -> dict[Any, Any]:
        """Return the outer optimizer's state, the same on every rank."""
        return self._sgd.state_dict()["state"]

    def own(self) -> list[Tensor]:
        """Return this worker's weights, in the order of their fragments."""
        return [weight.detach() for weight in self._global] if self._own is None else self._own

    @torch.no_grad()
    def resume(self, *, momentum: dict[Any, Any] | None, own: list[Tensor] | None, sent_bytes: float) -> None:
        """Take the model's weights for the global ones; without momentum or own weights, begin with none, or these."""
        _fill(self._global.values(), self._global)
        groups = self._sgd.state_dict()["param_groups"]  # of this run's settings
        self._sgd.load_state_dict({"state": momentum or {}, "param_groups": groups})
        self._own, self.sent_bytes = None, sent_bytes
        if own is not None:
            _fill(self._global, own)

    def _meet(self, fragment: list[Parameter]) -> None:
        """Move a fragment's global weights by the mean delta of all workers, and go on from there."""
        weights = [self._global[own] for own in fragment]
        delta = torch.cat([(weight - own).flatten() for weight, own in zip(weights, fragment, strict=True)])
        mean, sent_bytes = mean_over_ranks(delta, self._delta)
        self.sent_bytes += sent_bytes
        for weight, gradient in zip(weights, mean.split([weight.numel() for weight in weights]), strict=True):
            weight.grad = gradient.view_as(weight)
        self._sgd.step()  # of those with a gradient
        self._sgd.zero_grad()
        _fill(fragment, weights)


def fragments_of(model: LanguageModel, *, num_fragments: int) -> list[list[Parameter]]:
    """Deal blocks and the parameters outside them to fragments: the largest first, to the smallest fragment so far."""
    units = sorted(_units(model), key=_num_values, reverse=True)
    if num_fragments > len(units):
        raise ConfigurationError(
            f"strategy.num_fragments={num_fragments} is more than the model's {len(units)} layers and tables. "
            f"Did you mean {len(units)}?"
        )
    fragments: list[list[Parameter]] = [[] for _ in range(num_fragments)]
    for unit in units:
        min(fragments, key=_num_values).extend(unit)
    return fragments


def _units(model: LanguageModel) -> Iterator[list[Parameter]]:
    """Give each block's trained parameters together, and each other one by itself; shared ones once."""
    seen: set[Parameter] = set()
    for part in model.blocks:
        unit = [weight for weight in part.parameters() if weight.requires_grad and weight not in seen]
        seen.update(unit)
        if unit:
            yield unit
    for weight in model.parameters():
        if weight.requires_grad and weight not in seen:
            yield [weight]


def _num_values(unit: list[Parameter]) -> int:
    return sum(weight.numel() for weight in unit)


def _fill(targets: Any, values: Any) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
