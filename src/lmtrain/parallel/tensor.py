"""Tensor parallelism: the ranks of a group compute each product together, a share of the features each.

With sequence parallelism between the products (arXiv 2205.05198) and a loss over shards of the vocabulary. Groups may
have copies, or share each part out in turn (fsdp_tensor): FSDP2 averages gradients over all ranks of equal parts.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.accounting.model.memory import shard_axis
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.experts import balance_over_ranks
from lmtrain.parallel.fsdp import FullyShardedStrategy
from lmtrain.parallel.gradients import local_part
from lmtrain.parallel.strategy import Parallelism
from lmtrain.parallel.tensor_layers import Regions, TensorLayout
from lmtrain.parallel.tensor_parallel import cut_model, require_cuts


def tensor(
    *,
    num_ranks: int,
    compute_dtype: torch.dtype,
    tensor_size: int,
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Cut every matrix over `tensor_size` neighbouring ranks; each such group has a copy, and reads the same tokens."""
    spread = tensor_facts(tensor_size=tensor_size)
    return tensor_parallelism(
        "tensor", spread, num_ranks=num_ranks, compute_dtype=compute_dtype, timeout_seconds=timeout_seconds
    )


def tensor_facts(*, tensor_size: int = 8) -> ModelSpread:
    """Cut over neighbours in joint products, and compute with weights cast in their gathering."""
    return ModelSpread(tensor_ranks=tensor_size, casts_parameters=True)


def tensor_parallelism(
    name: str, spread: ModelSpread, *, num_ranks: int, compute_dtype: torch.dtype, timeout_seconds: float
) -> Parallelism:
    """Return the strategy of these facts."""
    spread.require_ranks(num_ranks)
    strategy = TensorStrategy(
        num_ranks=num_ranks,
        timeout_seconds=timeout_seconds,
        reduce_every_micro_step=spread.reduces_every_micro_step,
    )
    cut = partial(strategy.cut, spread=spread, compute_dtype=compute_dtype)
    require = partial(require_cuts, num_ranks=spread.tensor_ranks)
    return Parallelism(
        name=name,
        strategy=strategy,
        parallelize=cut,
        spread=spread,
        require=require,
        in_model_order=strategy.in_model_order,
    )


class TensorStrategy(FullyShardedStrategy):
    """FSDP2 over the parts of a tensor group, with checkpoints in the model's own order of rows."""

    _layout: TensorLayout

    def cut(
        self, model: LanguageModel, mesh: DeviceMesh | None, *, spread: ModelSpread, compute_dtype: torch.dtype
    ) -> LanguageModel:
        """Cut a model's matrices over tensor groups, then shard and average each part over the other ranks."""
        assert mesh is not None
        shards = spread.num_shards(mesh.size())
        copies = mesh.size() // (shards * spread.tensor_ranks)
        names = ("copies", "shards", "tensor")
        grid = init_device_mesh(mesh.device_type, (copies, shards, spread.tensor_ranks), mesh_dim_names=names)
        self._layout = cut_model(model, Regions(grid["tensor"]))
        options: dict[str, Any] = {
            "mesh": grid["copies", "shards"] if copies > 1 else grid["shards"],
            "mp_policy": MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32),
            "shard_placement_fn": partial(_other_axis, num_shards=shards),
        }
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=spread.reshard_after_forward, **options)
        fully_shard(model, **options)
        if mesh.size() > spread.tensor_ranks:  # the ranks of a group have the same tokens
            balance_over_ranks(model, mesh["data_parallel"].get_group())
        return model

    @override
    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **settings: Any
    ) -> Any:
        """Let gradients be whole before anybody reads them."""

        def whole_gradients() -> Any:
            result = closure()
            self._sum_parts()
            return result

        return super().optimizer_step(optimizer, whole_gradients, model, **settings)

    def _sum_parts(self) -> None:
        """Add up, in one message, the gradients of small parameters, from each rank's slice or heads."""
        assert self.lightning_module is not None
        model: Any = self.lightning_module.language_model
        parameters = [parameter for name, parameter in model.named_parameters() if name in self._layout.parts]
        gradients = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self._layout.mesh.get_group())
        for gradient, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the module's state, its rows in the model's own order."""
        return self.in_model_order(super().lightning_module_state_dict())

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's part of an optimizer's state, its rows in the model's own order."""
        state = super().optimizer_state(optimizer)
        return state | {"state": {name: self._state_in(one, name) for name, one in state["state"].items()}}

    def in_model_order(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors by their parameters' names with the rows of fused matrices as the model has them."""
        return {name: self._ordered(tensor, name) for name, tensor in tensors.items()}

    @override
    def take_weights(self, weights: dict[str, Any]) -> None:
        """Fill the module from this rank's part of the weights, its rows in the order of ranks."""
        super().take_weights({name: self._ordered(one, name, by_rank=True) for name, one in weights.items()})

    @override
    def take_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Fill an optimizer from this rank's part of its state, its rows in the order of ranks."""
        by_rank = {name: self._state_in(one, name, by_rank=True) for name, one in state["state"].items()}
        super().take_optimizer_state(optimizer, state | {"state": by_rank})

    def _state_in(self, state: Mapping[str, Any], name: str, *, by_rank: bool = False) -> dict[str, Any]:
        return {key: self._ordered(value, name, by_rank=by_rank) for key, value in state.items()}

    def _ordered(self, tensor: Any, name: str, *, by_rank: bool = False) -> Any:
        """Return a tensor of a fused matrix's rows in the order of the model, or of ranks; any other as it is."""
        orders = self._layout.row_orders
        found = next((rows for own, rows in orders.items() if name == own or name.endswith(f".{own}")), None)
        if found is None or not isinstance(tensor, Tensor):
            return tensor
        axis, order = found
        if tensor.ndim <= axis or tensor.shape[axis] != len(order):
            return tensor
        rows = order if by_rank else order.argsort()
        if not isinstance(tensor, DTensor):
            return tensor.index_select(axis, rows.to(tensor.device))
        whole: Tensor = tensor.detach().full_tensor()  # pyright: ignore[reportAttributeAccessIssue]  # lost by detach
        ordered = whole.index_select(axis, rows.to(whole.device))
        return distribute_tensor(ordered, tensor.device_mesh, tensor.placements, src_data_rank=None)


def _other_axis(parameter: torch.nn.Parameter, num_shards: int) -> Shard | None:
    """Shard a part of a matrix along an axis left whole by its tensor group, of experts between them if possible."""
    if not isinstance(parameter, DTensor):
        return None
    (cut,) = parameter.placements
    assert isinstance(cut, Shard)
    axes = [axis for axis in range(parameter.ndim) if axis != cut.dim]
    return Shard(axes[shard_axis([parameter.shape[axis] for axis in axes], num_shards)])
