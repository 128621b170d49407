"""Mixtures of experts over several ranks: a balance loss of all their tokens, and experts shared out among ranks.

The balance loss multiplies shares of tokens with mean probabilities. With the shares of all ranks it is the loss of one
process with the tokens of all: it is linear in the probabilities, whose gradients are averaged over ranks anyway.

Expert parallelism (GShard, arXiv 2006.16668 section 3): each rank of a group has its own tokens and a share of each
layer's experts. An all-to-all sends each row to the rank of its expert, another one sends the result back, and the
gradients go the opposite ways. FSDP2 shards a rank's experts over the ranks with the same ones, everything else over
all ranks, of each copy of the model. A tensor group cuts each expert's width: each of its ranks sends all rows, for its
part of the width.
E experts, R ranks of a group, e = E / R experts of a rank, M rows, D width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import Parameter
from typing_extensions import override

from lmtrain.accounting.model.memory import shard_axis
from lmtrain.errors import EnvironmentProblem
from lmtrain.models.base import LanguageModel
from lmtrain.models.mixture_of_experts import ExpertMatrices, MixtureOfExperts, TakenRows, inverse
from lmtrain.parallel import group_sizes
from lmtrain.parallel.tensor_layers import OPERATORS, Group, LocalPart, summed, take_parts

RunExperts = Callable[[Tensor, Tensor], Tensor]


@torch.library.custom_op("lmtrain::all_reduce_mean", mutates_args=())
def all_reduce_mean(x: Tensor, num_ranks: int, group: str) -> Tensor:
    """Average over the ranks of a group; an operator, whose result a recomputed block keeps: one message a layer."""
    return summed(x, Group(group, num_ranks, 0)) / num_ranks


@all_reduce_mean.register_fake
def _(x: Tensor, num_ranks: int, group: str) -> Tensor:
    del num_ranks, group
    return torch.empty_like(x)


def balance_over_ranks(model: LanguageModel, group: dist.ProcessGroup | None = None) -> LanguageModel:
    """Let the balance loss of each layer use the experts' shares of all tokens of a group; None is all ranks."""
    if dist.is_available() and dist.is_initialized():
        group = group or dist.group.WORLD
        assert group is not None
        for layer in expert_layers(model):
            if layer.experts.load_balance_weight and group.size() > 1:
                layer.average_shares = partial(all_reduce_mean, num_ranks=group.size(), group=group.group_name)
    return model


def require_expert_shares(model: nn.Module, *, num_ranks: int, num_shards: int, is_cut: bool = False) -> None:
    """Refuse a model whose experts `num_ranks` ranks cannot share out, and `num_shards` not cut further.

    `is_cut` is of experts whose width a tensor group divides.
    """
    _mesh_of_a_parameter()
    layers = expert_layers(model)
    group_sizes.require_expert_shares(num_ranks, layers[0].experts.num_experts if layers else None)
    for layer in layers:
        sides = {name: parameter.shape[1:] for name, parameter in layer.named_parameters(recurse=False)}
        uncut = layer.router.in_features if is_cut else None
        group_sizes.require_expert_sides(num_ranks, num_shards, sides, uncut=uncut)


def _mesh_of_a_parameter() -> tuple[Any, Any]:
    """Return FSDP2's facts of a mesh and its place of a parameter on it, which are not public in torch 2.13."""
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_common import ShardPlacementResult
        from torch.distributed.fsdp._fully_shard._fsdp_init import (
            _get_mesh_info,  # pyright: ignore[reportPrivateUsage]
        )
    except ImportError as missing:
        raise EnvironmentProblem(f"strategy.expert_size needs torch 2.13, got {torch.__version__}.") from missing
    return _get_mesh_info, ShardPlacementResult


def expert_layers(model: nn.Module) -> list[MixtureOfExperts]:
    """Return the layers with experts."""
    return [layer for layer in model.modules() if isinstance(layer, MixtureOfExperts)]


def uncut_axis(parameter: DTensor, *, num_shards: int) -> Shard:
    """Return the axis for FSDP2 to shard, of those that no group has cut: torch fails to cut one twice (2.13)."""
    cut = {one.dim for one in parameter.placements if isinstance(one, Shard)}
    axes = [axis for axis in range(parameter.ndim) if axis not in cut]
    return Shard(axes[shard_axis([parameter.shape[axis] for axis in axes], num_shards)])


@final
class ExpertGroups:
    """Neighbouring ranks with a share of the experts each, and the ranks with the same share."""

    def __init__(self, grid: DeviceMesh) -> None:
        """Take a mesh with axes of `experts`, of `shards` and `copies` with the same ones, and of `tensor` groups."""
        self._grid = grid
        self._experts, self._shards, copies = grid["experts"], grid["shards"], grid["copies"]
        self._averaged = grid["copies", "shards"] if copies.size() > 1 else self._shards
        self._num_ranks = self._averaged.size() * self._experts.size()

    def share_out(self, model: LanguageModel) -> None:
        """Keep this rank's experts of each layer, and send each token to its experts' ranks."""
        for block in model.blocks:
            if next(block.parameters(), None) is not None and (layers := expert_layers(block)):
                parts = [part for layer in layers for part in self._keep_own(layer)]
                block.register_forward_pre_hook(partial(take_parts, parts))
                if block._compiled_call_impl is not None:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                    block.compile(dynamic=False)  # in two graphs: the number of rows that arrive changes

    def placement(self, of_others: Callable[[Parameter], Shard]) -> Callable[[Parameter], Any]:
        """Return FSDP2's placements: experts over the ranks with the same ones, within each expert."""
        facts_of, placed = _mesh_of_a_parameter()
        mesh = facts_of(self._averaged)

        def place(parameter: Parameter) -> Any:
            axes = parameter.device_mesh.mesh_dim_names if isinstance(parameter, DTensor) else None
            if not isinstance(parameter, DTensor) or "experts" not in (axes or ()):
                return of_others(parameter)
            return placed(uncut_axis(parameter, num_shards=self._shards.size()), mesh)

        return place

    def average_over_all(self, model: LanguageModel) -> None:
        """Divide experts' gradients by all ranks: each is a sum over its group's tokens already.

        Gloo has no sum with a factor, so that both kinds of gradients are added up first, but for experts that a copy
        of the model has on one rank: they would be divided twice (torch 2.13).
        """
        is_sharded, has_copies = self._shards.size() > 1, self._averaged is not self._shards
        for block in model.blocks:
            if isinstance(block, FSDPModule) and expert_layers(block):
                sharded: Any = block
                sharded.set_gradient_divide_factor(float(self._num_ranks))
                sharded.set_force_sum_reduction_for_comms(is_sharded or has_copies)
                for group in sharded._get_fsdp_state()._fsdp_param_groups:  # noqa: SLF001
                    if group.mesh_info.mesh == self._averaged and not is_sharded:
                        group.force_sum_reduction_for_comms = False

    def _keep_own(self, layer: MixtureOfExperts) -> list[LocalPart]:
        parts: dict[str, LocalPart] = {}
        is_cut = isinstance(layer.gate_up, DTensor)  # by a tensor group, whose layout takes its parts
        for name, parameter in list(layer.named_parameters(recurse=False)):
            own = self._own(parameter.detach())
            layer.register_parameter(name, nn.Parameter(own, requires_grad=parameter.requires_grad))
            if not is_cut:
                parts[name] = LocalPart(layer, name)

        def matrices() -> ExpertMatrices:
            return ExpertMatrices(*(parts[name].value if name in parts else None for name in ExpertMatrices._fields))  # pyright: ignore[reportArgumentType]

        group = self._experts.get_group().group_name
        size = self._experts.size()
        if not is_cut:
            layer.matrices = matrices
        run_own = partial(_on_all_ranks, layer.run_experts, size, layer.experts.num_experts // size, group)
        eager: Any = torch.compiler.disable(run_own)
        layer.run_experts = eager
        return [*parts.values()]

    def _own(self, values: Tensor) -> DTensor:
        """Return this rank's experts, of their part on this rank of a tensor group."""
        if not isinstance(values, DTensor):
            return distribute_tensor(values, self._experts, [Shard(0)], src_data_rank=None)
        own = values.to_local().chunk(self._experts.size())[self._experts.get_local_rank()]
        return DTensor.from_local(own.contiguous(), self._grid["experts", "tensor"], [Shard(0), *values.placements])


def _on_all_ranks(run: RunExperts, num_ranks: int, num_own: int, group: str, rows: Tensor, experts: Tensor) -> Tensor:
    """Transform each row [M, D] on the rank of its expert, int64 [M] in ascending order."""
    counts = torch.bincount(experts, minlength=num_ranks * num_own)  # [E]
    ones = [1] * num_ranks
    by_rank = OPERATORS.all_to_all_single(counts.view(num_ranks, num_own), ones, ones, group)
    arriving = OPERATORS.wait_tensor(by_rank)  # [R, e]
    sent, received = torch.stack([counts.view(num_ranks, num_own), arriving]).sum(dim=-1).tolist()
    arrived = _RowExchange.apply(rows, received, sent, group)
    own = (
        torch.arange(num_own, device=rows.device)
        .repeat(num_ranks)
        .repeat_interleave(arriving.flatten(), output_size=sum(received))
    )
    own, order = own.sort(stable=True)
    places = inverse(order)
    made = TakenRows.apply(run(TakenRows.apply(arrived, order, places, 1), own), places, order, 1)
    return _RowExchange.apply(made, sent, received, group)


class _RowExchange(torch.autograd.Function):
    """Send each rank its number of rows, by rank, and return those of all ranks; gradients go back."""

    @staticmethod
    @override
    def forward(ctx: Any, rows: Tensor, received: list[int], sent: list[int], group: str) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.received, ctx.sent, ctx.group = received, sent, group
        return _exchanged(rows, received, sent, group)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _exchanged(gradient, ctx.sent, ctx.received, ctx.group), None, None, None


def _exchanged(rows: Tensor, received: list[int], sent: list[int], group: str) -> Tensor:
    with torch.profiler.record_function("lmtrain::experts"):  # for the ledger, callbacks/communication.py
        return OPERATORS.wait_tensor(OPERATORS.all_to_all_single(rows.contiguous(), received, sent, group))
