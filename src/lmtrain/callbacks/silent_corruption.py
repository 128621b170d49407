"""Find a device with wrong results and no error: a micro-batch done twice, and the copies of the weights compared.

One flipped bit is enough for both. The rank is named with its machine, and the run ends with exit code 3, without
another checkpoint.
"""

import socket
from collections import Counter
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.parallel.rank_reports import bit_sums, on_all_ranks, part_of, replica_groups
from lmtrain.training.context import RunCallback, RunContext
from lmtrain.training.intervals import StepInterval
from lmtrain.training.module import CausalLMModule


class SilentCorruption(RunCallback):
    """Do one micro-batch twice every `recompute_every_steps` steps, compare weights every `compare_...`; None: never.

    The micro-batch is the first of its step, by the weights that train: its loss, and where the model is whole and the
    device repeats its own results (a CPU, or `deterministic=true`) also every gradient, are compared bit for bit. The
    weights are those of ranks with copies of the same part, as under ddp and hsdp.
    """

    def __init__(
        self,
        *,
        recompute_every_steps: int | None = None,
        compare_replicas_every_steps: int | None = None,
        context: RunContext | None = None,
    ) -> None:
        super().__init__(context)
        self._groups: list[list[int]] = []
        self._recompute: StepInterval | None = None
        if recompute_every_steps is not None:
            key = "health.recompute_every_steps"
            self._recompute = StepInterval(recompute_every_steps, key=key)
            self.on_train_batch_start = self._do_twice
        if compare_replicas_every_steps is not None:
            key = self._compare_key = "health.compare_replicas_every_steps"
            self.step_interval = StepInterval(compare_replicas_every_steps, key=key)
            self.on_train_start = self._find_replicas

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self._recompute is None:
            return
        self._recompute.last_step = self.run.last_step
        if not isinstance(pl_module, CausalLMModule):
            raise ConfigurationError(
                "health.recompute_every_steps must be null for this module: only CausalLMModule repeats a micro-batch."
            )

    def _do_twice(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        """Compare two times the same."""
        assert isinstance(pl_module, CausalLMModule)
        step = trainer.global_step + 1
        assert self._recompute is not None
        if batch_idx % trainer.accumulate_grad_batches or not self._recompute.includes(step):
            return
        names, once = self._results(trainer, pl_module, batch, batch_idx)
        _, again = self._results(trainer, pl_module, batch, batch_idx)
        wrong = [name for name, differs in zip(names, (once != again).tolist(), strict=True) if differs]
        if found := _problems(wrong):
            raise EnvironmentProblem(
                f"Step {step}: one micro-batch, computed twice, gave different results on {'; '.join(found)}. "
                "Go on from a checkpoint of before the last such comparison, without that device."
            )

    @staticmethod
    def _results(trainer: pl.Trainer, module: CausalLMModule, batch: Any, batch_idx: int) -> tuple[list[str], Tensor]:
        """Return the names of loss and gradients, and the sums of their bits; nothing else is left behind."""
        module.on_train_batch_start(batch, batch_idx)  # the same random numbers each time
        model = module.language_model
        trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
        device = next(iter(trained.values())).device
        repeats = device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
        is_whole = not any(part_of(trained.values()))
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with torch.set_grad_enabled(is_whole and repeats), trainer.precision_plugin.train_step_context():
            _, loss = module.step.share_of(batch)
        gradients = torch.autograd.grad(loss, [*trained.values()], allow_unused=True) if loss.requires_grad else ()
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
        of_weights: list[tuple[str, Tensor | None]] = [*zip(trained, gradients, strict=False)]
        named = [("the loss", loss), *((name, one) for name, one in of_weights if one is not None)]
        return [name for name, _ in named], bit_sums(one for _, one in named)

    def _find_replicas(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Group the ranks by their part of the weights."""
        del trainer
        if not isinstance(pl_module, CausalLMModule) or pl_module.outer is None:
            self._groups = replica_groups(on_all_ranks(part_of(_model(pl_module).parameters())))
        if not self._groups:
            raise ConfigurationError(
                f"{self._compare_key} compares copies of the weights, and no rank of this run has the same as another. "
                f"Did you mean {self._compare_key}=null?"
            )

    @override
    def on_due_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the copies of the weights."""
        model = _model(pl_module)
        names = [name for name, _ in model.named_parameters()]
        sums: list[list[int]] = on_all_ranks(bit_sums(model.parameters()).tolist())
        wrong = [name for at, name in enumerate(names) if set(_outliers([one[at] for one in sums], self._groups))]
        if not wrong:
            return
        at = names.index(wrong[0])
        ranks = sorted(set(_outliers([one[at] for one in sums], self._groups)))
        hosts = on_all_ranks(socket.gethostname())
        named = ", ".join(f"{rank} ({hosts[rank]})" for rank in ranks)
        raise EnvironmentProblem(
            f"Step {trainer.global_step}: the copies of {wrong[0]} differ on rank{'s' * (len(ranks) > 1)} {named}"
            f"{f', and of {len(wrong) - 1} more' if len(wrong) > 1 else ''}. Go on from a checkpoint of before the "
            "last comparison, without that device."
        )


def _model(module: pl.LightningModule) -> nn.Module:
    return module.language_model if isinstance(module, CausalLMModule) else module


def _problems(wrong: Sequence[str]) -> list[str]:
    """Return a line about each rank with a difference."""
    mine = f"{socket.gethostname()}: {wrong[0]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else "") if wrong else ""
    return [f"rank {rank} ({text})" for rank, text in enumerate(on_all_ranks(mine)) if text]


def _outliers(values: Sequence[int], groups: Sequence[Sequence[int]]) -> list[int]:
    """Return the ranks with another value than most of their group; all of it where none has most."""
    found: list[int] = []
    for ranks in groups:
        (usual, most), *others = Counter(values[rank] for rank in ranks).most_common()
        if others:
            found += [rank for rank in ranks if values[rank] != usual or most <= len(ranks) // 2]
    return found
