"""Show every optimizer step's gradients, before they are clipped, and the weights after it; then end the run."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import lightning.pytorch as pl
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.training.loop.steps import is_step_end
from lmtrain.training.module import CausalLMModule

Seen = Callable[[int, Literal["gradient", "weight"], Mapping[str, Tensor]], object]


class StepWitness(pl.Callback):
    """Call `see(step, kind, tensors by their parameters' names)`, steps from 1; weights also at step 0."""

    def __init__(self, see: Seen, *, num_steps: int) -> None:
        super().__init__()
        self._see, self._num_steps = see, num_steps

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._see(0, "weight", _parameters(pl_module))

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        parameters = _parameters(pl_module)
        gradients = {name: one.grad for name, one in parameters.items() if one.grad is not None}
        self._see(trainer.global_step + 1, "gradient", gradients)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not is_step_end(trainer, batch_idx):
            return
        self._see(trainer.global_step, "weight", _parameters(pl_module))
        trainer.should_stop = trainer.global_step >= self._num_steps


def _parameters(module: pl.LightningModule) -> dict[str, Tensor]:
    assert isinstance(module, CausalLMModule)
    return dict(module.language_model.named_parameters())
