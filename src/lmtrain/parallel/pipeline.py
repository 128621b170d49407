"""Pipeline parallelism: neighbouring ranks hold some layers each, and hand hidden states on.

arXiv 2104.04473 section 2.2. Copies of a pipeline read other rows, and add up gradients once a step. Checkpoints have
every parameter under its name in the whole model: they go on in any number of stages, and without any.
"""

from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Any

import lightning.pytorch as pl
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.accounting.model.memory import Pipeline, Schedule
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.models.base import LanguageModel
from lmtrain.models.stages import StagedModel
from lmtrain.parallel.compilation import compile_blocks
from lmtrain.parallel.experts import balance_over_ranks
from lmtrain.parallel.fsdp import FullyShardedStrategy
from lmtrain.parallel.pipeline_parts import require_staged, twin_on_meta
from lmtrain.parallel.pipeline_run import PipelineRun
from lmtrain.parallel.rank_reports import on_all_ranks
from lmtrain.parallel.strategy import Parallelism

MODEL, AVERAGE = "language_model.", "weight_average."  # of names in the module that trains


def pipeline(
    *,
    num_ranks: int,
    num_stages: int,
    schedule: Schedule = "1f1b",
    num_chunks: int = 1,
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Cut the layers over `num_stages` neighbours, in `num_chunks` parts each; each such group has a copy."""
    spread = pipeline_facts(num_stages=num_stages, schedule=schedule, num_chunks=num_chunks)
    spread.require_ranks(num_ranks)
    strategy = PipelineStrategy(num_ranks=num_ranks, timeout_seconds=timeout_seconds)
    return Parallelism(
        name="pipeline",
        strategy=strategy,
        parallelize=partial(strategy.cut, pipeline=spread.pipeline),
        spread=spread,
        require=partial(require_staged, pipeline=spread.pipeline),
        in_model_order=strategy.in_model_order,
    )


def pipeline_facts(*, num_stages: int = 8, schedule: Schedule = "1f1b", num_chunks: int = 1) -> ModelSpread:
    """Cut the layers over neighbours, `num_chunks` parts each."""
    stages = Pipeline(num_stages=num_stages, num_chunks=num_chunks, schedule=schedule)
    return ModelSpread(pipeline=stages, keeps_gradients=True)


class PipelineStrategy(FullyShardedStrategy):
    """Stages of a model in place of shards, with sharded checkpoints of the whole model's names and groups."""

    _run: PipelineRun
    _twin: LanguageModel  # the whole model, without memory
    _groups: list[dict[str, None]]  # the names in each group of its optimizer

    def cut(self, model: LanguageModel, mesh: DeviceMesh | None, *, pipeline: Pipeline) -> LanguageModel:
        """Leave this rank's layers in the model, and let it train and compute together with the other stages."""
        assert mesh is not None
        require_staged(model, pipeline=pipeline)
        assert isinstance(model, StagedModel)
        self._twin = twin_on_meta(model)
        if vars(model).pop("_compiled_call_impl", None) is not None:  # as a whole, which no stage has
            compile_blocks(model)
        shape = (mesh.size() // pipeline.num_stages, pipeline.num_stages)
        grid = init_device_mesh(mesh.device_type, shape, mesh_dim_names=("copies", "stages"))
        self._run = run = PipelineRun(model, grid, pipeline, self.precision_plugin.forward_context)
        model.whole_step = run
        for name in ("features", "logits", "forward"):
            setattr(model, name, getattr(run, name))
        return balance_over_ranks(model, grid["copies"].get_group())

    @override
    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Build this stage's optimizer, and note the groups of the one that one process would have."""
        super().setup_optimizers(trainer)
        module: Any = self.lightning_module
        names = {id(parameter): MODEL + name for name, parameter in self._twin.named_parameters()}
        groups = module.make_optimizer(self._twin).param_groups
        self._groups = [dict.fromkeys(names[id(parameter)] for parameter in group["params"]) for group in groups]

    @override
    def named_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's part of an optimizer's state, with the groups of the whole model."""
        state = super().named_state(optimizer)
        there = [*chain.from_iterable(on_all_ranks(state["param_groups"]))]
        groups = [
            {**next(group for group in there if names.keys() & {*group["params"]}), "params": [*names]}
            for names in self._groups
        ]
        return {**state, "param_groups": groups}

    @override
    def take_weights(self, weights: dict[str, Any]) -> None:
        """Fill the module from this rank's part of the weights, or from all of them."""
        assert self.model is not None
        own = self.model.state_dict().keys()
        others = {place + name for place in (MODEL, AVERAGE) for name in self._twin.state_dict()} - own
        super().take_weights({name: value for name, value in weights.items() if name not in others})

    @override
    def take_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Fill an optimizer from this rank's part of its state, or from all of it."""
        own = {MODEL + name for name, _ in self._module_model().named_parameters()}
        groups = [
            {**group, "params": [name for name in group["params"] if name in own]} for group in state["param_groups"]
        ]
        super().take_optimizer_state(
            optimizer,
            {
                "state": {name: value for name, value in state["state"].items() if name in own},
                "param_groups": [group for group in groups if group["params"]],
            },
        )

    def in_model_order(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of all stages, by their parameters' names in the whole model's order."""
        own = {name: tensor.detach().cpu() for name, tensor in tensors.items() if tensor is not None}
        of_ranks: list[Any] = [None] * self._run.stages.size()
        dist.all_gather_object(of_ranks, own, group=self._run.stages)
        found = {name: tensor for of_rank in of_ranks for name, tensor in of_rank.items()}
        return {name: found[name] for name in self._run.names if name in found}

    def _module_model(self) -> LanguageModel:
        assert self.lightning_module is not None
        return self.lightning_module.language_model  # pyright: ignore[reportReturnType, reportAttributeAccessIssue]
