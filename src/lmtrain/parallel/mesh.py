"""One mesh for every strategy that shards, cuts or stages a model; strategy=fsdp and others are its shorthands.

From neighbours to the farthest ranks: a tensor group (which sends most, arXiv 2104.04473), a context group, the stages
of a pipeline, the shards of a copy, and copies. A tensor group, a context group and the stages read the same rows.

- FSDP2 shards a stage's parameters, or a tensor group's parts of them, over shards and context groups together: each
  rank keeps a slice of every tensor and gathers one block at a time. Copies across shards (HSDP, arXiv 2304.11277
  section 3.2.2) gather over the fast links of a node alone.
- A tensor group computes each product together, with sequence parallelism between the products (arXiv 2205.05198) and
  a loss over shards of the vocabulary.
- A context group has a slice of each sequence on every rank. Within attention a rank has all of it for a share of the
  heads, where the group divides them (parallel/ulysses.py), else the keys and values of all tokens
  (parallel/gathered_keys.py).
- The stages of a pipeline (arXiv 2104.04473 section 2.2) have some layers each, and hand hidden states on.

Checkpoints have every parameter under its name in the whole model, and go on under any strategy.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final, final

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Parameter
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.accounting.model.memory import WAITS, Pipeline, Schedule, shard_axis
from lmtrain.accounting.options.strategy import MeshOption, ModelSpread
from lmtrain.models.base import LanguageModel
from lmtrain.models.stages import StagedModel
from lmtrain.parallel.compilation import compile_blocks
from lmtrain.parallel.context_slices import require_slices, slice_sequences
from lmtrain.parallel.experts import ExpertGroups, balance_over_ranks, require_expert_shares, uncut_axis
from lmtrain.parallel.float8_gathers import Float8Gathers
from lmtrain.parallel.pipeline_parts import cut_layers, require_staged, twin_on_meta
from lmtrain.parallel.pipeline_run import PipelineRun
from lmtrain.parallel.rank_reports import on_all_ranks
from lmtrain.parallel.sharded_strategy import FullyShardedStrategy
from lmtrain.parallel.strategy import Parallelism
from lmtrain.parallel.tensor_layers import Regions, TensorLayout
from lmtrain.parallel.tensor_parallel import cut_model, require_cuts

MODEL, AVERAGE = "language_model.", "weight_average."  # of names in the module that trains
AXES: Final = ("copies", "shards", "stages", "tensor")


def mesh(
    *,
    num_ranks: int,
    compute_dtype: torch.dtype,
    option: MeshOption = "mesh",
    replicate_size: int | None = None,
    shard_size: int | None = None,
    pipeline_size: int = 1,
    context_size: int = 1,
    tensor_size: int = 1,
    expert_size: int = 1,
    schedule: Schedule = "1f1b",
    num_chunks: int = 1,
    reshard_after_forward: bool = True,
    reduce_every_micro_step: bool = False,
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Spread the model over groups of these sizes; None takes the ranks that the others leave.

    `option` is the strategy's name: all but mesh are its shorthands, with few of its settings. `tensor` and `pipeline`
    without a `shard_size` copy each part. `expert_size` neighbours have a share of each layer's experts each,
    and send one another the tokens for them. `reshard_after_forward` frees a block's gathered weights until its
    backward pass: less memory, one more gather. `reduce_every_micro_step` sends gradients at each micro-batch, in place
    of whole fp32 gradients on every rank between the first and the last of a step; copies are averaged once a step.
    """
    spread = mesh_facts(
        option=option,
        replicate_size=replicate_size,
        shard_size=shard_size,
        pipeline_size=pipeline_size,
        context_size=context_size,
        tensor_size=tensor_size,
        expert_size=expert_size,
        schedule=schedule,
        num_chunks=num_chunks,
        reshard_after_forward=reshard_after_forward,
        reduce_every_micro_step=reduce_every_micro_step,
    )
    spread.require_ranks(num_ranks)
    strategy = MeshStrategy(spread, num_ranks=num_ranks, compute_dtype=compute_dtype, timeout_seconds=timeout_seconds)
    return Parallelism(
        name=option,
        strategy=strategy,
        parallelize=strategy.place,
        spread=spread,
        require=partial(require_fit, spread=spread, num_ranks=num_ranks),
        in_model_order=strategy.in_model_order,
    )


def mesh_facts(
    *,
    option: MeshOption = "mesh",
    replicate_size: int | None = None,
    shard_size: int | None = None,
    pipeline_size: int = 1,
    context_size: int = 1,
    tensor_size: int = 1,
    expert_size: int = 1,
    schedule: Schedule = "1f1b",
    num_chunks: int = 1,
    reshard_after_forward: bool = True,
    reduce_every_micro_step: bool = False,
) -> ModelSpread:
    """Shard each stage's parts over the ranks of the same part; stages alone keep plain weights."""
    stages = Pipeline(num_stages=pipeline_size, num_chunks=num_chunks, schedule=schedule)
    is_general, keeps_copies = option == "mesh", option in ("tensor", "pipeline") and shard_size is None
    shard_size = 1 if keeps_copies else shard_size
    is_staged = pipeline_size > 1 or option == "pipeline"  # copies of a single stage too
    if is_staged and shard_size == context_size == tensor_size == 1:
        return ModelSpread(pipeline=stages, copies=replicate_size, keeps_gradients=True, is_general=is_general)
    switches = {"reduce_every_micro_step": reduce_every_micro_step, "reshard_after_forward": reshard_after_forward}
    is_cut = not keeps_copies or context_size > 1
    return ModelSpread(
        shards_over=None if not is_cut else "all ranks" if shard_size is None else shard_size * context_size,
        casts_parameters=True,
        copies=replicate_size,
        # Torch takes the weights of a pass of their own gradients from the modules, where they must be gathered.
        reshard_after_forward=reshard_after_forward and schedule not in WAITS,
        reduces_every_micro_step=reduce_every_micro_step,
        savings=tuple(f"{name}=true" for name, is_on in switches.items() if is_cut and not is_on),
        tensor_ranks=tensor_size,
        context_ranks=context_size,
        expert_ranks=expert_size,
        pipeline=stages,
        is_general=is_general,
    )


def require_fit(model: LanguageModel, *, spread: ModelSpread, num_ranks: int) -> None:
    """Refuse a model that groups of these sizes cannot cut, share or stage."""
    if spread.pipeline.num_stages > 1:
        require_staged(model, pipeline=spread.pipeline)
    if spread.tensor_ranks > 1:
        require_cuts(model, num_ranks=spread.tensor_ranks)
    if spread.context_ranks > 1:
        require_slices(model)
    if spread.expert_ranks > 1:
        num_shards = spread.num_shards(num_ranks) // spread.expert_ranks
        is_cut = spread.tensor_ranks > 1
        require_expert_shares(model, num_ranks=spread.expert_ranks, num_shards=num_shards, is_cut=is_cut)


@final
class RankGroups:
    """The ranks of a spread by copies, shards, stages and places in a tensor group; slices of a sequence are shards."""

    def __init__(self, spread: ModelSpread, world: DeviceMesh) -> None:
        """Make the groups of all ranks; every rank must."""
        self._device, self._world = world.device_type, world
        stages, slices, tensor = spread.pipeline.num_stages, spread.context_ranks, spread.tensor_ranks
        shards = spread.num_shards(world.size())
        copies = world.size() // (shards * stages * tensor)
        neighbours = torch.arange(world.size()).view(copies, shards // slices, stages, slices, tensor)
        self._ranks = neighbours.transpose(2, 3).reshape(copies, shards, stages, tensor)
        self.num_copies, self.num_shards = copies, shards
        self.grid = self.mesh(self._ranks.shape, AXES)

    def mesh(self, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        """Return a mesh of all ranks in the order of the grid, its axes split or joined."""
        return DeviceMesh(self._device, self._ranks.reshape(shape), mesh_dim_names=names)

    @property
    def num_data_ranks(self) -> int:
        """Count the ranks with the same parameters, each with other tokens."""
        return self.num_copies * self.num_shards

    @property
    def averaged(self) -> DeviceMesh:
        """Return FSDP2's mesh: of shards, or of copies by shards, with an average over the copies too."""
        return self.grid["copies", "shards"] if self.num_copies > 1 else self.grid["shards"]

    def of_data(self) -> dist.ProcessGroup:
        """Return the ranks with the same layers; all of them where there are no stages."""
        others = self._ranks.numel() // self.num_data_ranks
        if self.grid["stages"].size() == 1:
            return self._world["data_parallel"].get_group()
        return self.mesh((self.num_data_ranks, others), ("data", "others"))["data"].get_group()

    def of_experts(self, num_shares: int) -> DeviceMesh:
        """Return the ranks of shares of the experts, and the shards and copies with the same share."""
        shape = (self.num_copies, self.num_shards // num_shares, num_shares, *self._ranks.shape[2:])
        return self.mesh(shape, ("copies", "shards", "experts", "stages", "tensor"))

    def of_context(self, num_slices: int) -> DeviceMesh:
        """Return the ranks with a slice each of the same sequences."""
        shape = (self.num_data_ranks // num_slices, num_slices, self._ranks.numel() // self.num_data_ranks)
        return self.mesh(shape, ("data", "context", "others"))["context"]


def shard_blocks(
    model: LanguageModel, groups: RankGroups, *, spread: ModelSpread, compute_dtype: torch.dtype
) -> LanguageModel:
    """Shard each block on this rank, then the rest, over the ranks of the same part; reduce gradients in fp32.

    Experts are shared out over expert groups first.
    """
    num_shards = groups.num_shards
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    place = partial(_axis_of_shards, num_shards=num_shards, keeps_default=spread.tensor_ranks > 1)
    options: dict[str, Any] = {"mesh": groups.averaged, "mp_policy": policy, "shard_placement_fn": place}
    experts = ExpertGroups(groups.of_experts(spread.expert_ranks)) if spread.expert_ranks > 1 else None
    if experts is not None:
        experts.share_out(model)
        options["shard_placement_fn"] = experts.placement(place)
    for block in model.blocks:
        if next(block.parameters(), None) is not None:
            fully_shard(block, reshard_after_forward=spread.reshard_after_forward, **options)
    fully_shard(model, **options)
    if experts is not None:
        experts.average_over_all(model)
    return model


def _axis_of_shards(parameter: Parameter, *, num_shards: int, keeps_default: bool) -> Shard | None:
    """Return the axis to shard; of a part of a matrix one left whole by its tensor group, of experts between them."""
    if isinstance(parameter, DTensor):
        return uncut_axis(parameter, num_shards=num_shards)
    return None if keeps_default else Shard(shard_axis(parameter.shape, num_shards))


class MeshStrategy(FullyShardedStrategy):
    """FSDP2 over the parts of tensor groups and stages, with checkpoints in the names, rows and groups of the model."""

    _layout: TensorLayout | None = None
    _run: PipelineRun | None = None
    _gathers: Float8Gathers | None = None
    _twin: LanguageModel  # the whole model, without memory; of stages alone
    _groups: list[dict[str, None]]  # the names in each group of its optimizer

    def __init__(
        self, spread: ModelSpread, *, num_ranks: int, compute_dtype: torch.dtype, timeout_seconds: float
    ) -> None:
        """Compute in `compute_dtype`; a rank silent for the timeout ends the run."""
        super().__init__(
            num_ranks=num_ranks,
            timeout_seconds=timeout_seconds,
            reduce_every_micro_step=spread.reduces_every_micro_step,
        )
        self._spread, self._compute_dtype = spread, compute_dtype

    def place(self, model: LanguageModel, mesh: DeviceMesh | None) -> LanguageModel:
        """Leave this rank's part in the model, and let it train and compute together with the others."""
        assert mesh is not None
        spread, groups = self._spread, RankGroups(self._spread, mesh)
        is_staged = spread.pipeline.num_stages > 1 or not spread.casts_parameters  # copies of one stage too
        layers = self._cut_layers(model) if is_staged else None
        enter: Callable[[int], int] = int
        if spread.tensor_ranks > 1:
            self._layout = cut_model(model, Regions(groups.grid["tensor"]))
            enter = self._layout.regions.enter
        if spread.context_ranks > 1:  # a slice of a sequence, of which a tensor group's ranks have a slice each
            slices, of_tensor_group = slice_sequences(model, groups.of_context(spread.context_ranks)), enter
            enter = lambda num_tokens: of_tensor_group(slices.enter(num_tokens))  # noqa: E731
        if layers is not None:
            assert isinstance(model, StagedModel)
            stages, context = groups.grid["stages"].get_group(), self.precision_plugin.forward_context
            self._run = PipelineRun(model, stages, spread.pipeline, layers=layers, context=context, enter=enter)
        if spread.casts_parameters:
            shard_blocks(model, groups, spread=spread, compute_dtype=self._compute_dtype)
            self._gathers = Float8Gathers(model, groups.grid["shards"].get_group(), dtype=self._compute_dtype)
        if self._run is not None:
            self._run.connect(groups.of_data(), num_slices=spread.context_ranks)
        return balance_over_ranks(model, groups.of_data()) if groups.num_data_ranks > 1 else model

    def _cut_layers(self, model: LanguageModel) -> list[range]:
        """Note the whole model, and return the layers of each part of it."""
        require_staged(model, pipeline=self._spread.pipeline)
        self._twin = twin_on_meta(model)
        if vars(model).pop("_compiled_call_impl", None) is not None:  # as a whole, which no stage has
            compile_blocks(model)
        return cut_layers(model, num_parts=self._spread.pipeline.num_parts)

    @override
    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Build this rank's optimizer; of a stage, note the groups of the one that one process would have."""
        super().setup_optimizers(trainer)
        if self._run is None:
            return
        module: Any = self.lightning_module
        names = {id(parameter): MODEL + name for name, parameter in self._twin.named_parameters()}
        groups = module.make_optimizer(self._twin).param_groups
        self._groups = [dict.fromkeys(names[id(parameter)] for parameter in group["params"]) for group in groups]

    @override
    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **settings: Any
    ) -> Any:
        """Let gradients be whole before anybody reads them."""

        def whole_gradients() -> Any:
            result = closure()
            if self._layout is not None:
                self._layout.sum_parts(self._module_model())
            if self._gathers is not None:
                self._gathers.seen.clear()
            return result

        return super().optimizer_step(optimizer, whole_gradients, model, **settings)

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the module's state, its rows in the model's own order."""
        return self._in_rows(super().lightning_module_state_dict())

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's part of an optimizer's state, its rows in the model's own order."""
        state = super().optimizer_state(optimizer)
        return state | {"state": {name: self._state_in_rows(one, name) for name, one in state["state"].items()}}

    @override
    def named_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's part of an optimizer's state, with the groups of the whole model."""
        state = super().named_state(optimizer)
        if self._run is None:
            return state
        there = [*chain.from_iterable(on_all_ranks(state["param_groups"]))]
        groups = [
            {**next(group for group in there if names.keys() & {*group["params"]}), "params": [*names]}
            for names in self._groups
        ]
        return {**state, "param_groups": groups}

    @override
    def take_weights(self, weights: dict[str, Any]) -> None:
        """Fill the module from this rank's part of the weights, or from all of them, its rows in the order of ranks."""
        assert self.model is not None
        others: set[str] = set()
        if self._run is not None:
            own = self.model.state_dict().keys()
            others = {place + name for place in (MODEL, AVERAGE) for name in self._twin.state_dict()} - own
        kept = {name: value for name, value in weights.items() if name not in others}
        super().take_weights(self._in_rows(kept, by_rank=True))

    @override
    def take_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Fill an optimizer from this rank's part of its state, or from all of it, its rows in the order of ranks."""
        groups = state["param_groups"]
        own = {MODEL + name for name, _ in self._module_model().named_parameters()}
        if self._run is not None:
            groups = [{**group, "params": [name for name in group["params"] if name in own]} for group in groups]
            groups = [group for group in groups if group["params"]]
        named = {name: one for name, one in state["state"].items() if self._run is None or name in own}
        by_rank = {name: self._state_in_rows(one, name, by_rank=True) for name, one in named.items()}
        super().take_optimizer_state(optimizer, {**state, "state": by_rank, "param_groups": groups})

    def in_model_order(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors by their parameters' names, of all stages, with the rows of fused matrices as the model's."""
        own = self._in_rows(tensors)
        return own if self._run is None else self._run.of_all_stages(own)

    def _in_rows(self, tensors: Mapping[str, Any], *, by_rank: bool = False) -> dict[str, Any]:
        if self._layout is None:
            return {**tensors}
        return {name: self._layout.ordered(tensor, name, by_rank=by_rank) for name, tensor in tensors.items()}

    def _state_in_rows(self, state: Mapping[str, Any], name: str, *, by_rank: bool = False) -> dict[str, Any]:
        if self._layout is None:
            return {**state}
        return {key: self._layout.ordered(value, name, by_rank=by_rank) for key, value in state.items()}

    def _module_model(self) -> LanguageModel:
        assert self.lightning_module is not None
        return self.lightning_module.language_model  # pyright: ignore[reportReturnType, reportAttributeAccessIssue]
