"""One optimizer step of a language model, from top to bottom; without Lightning.

    on_train_batch_start    callbacks; random numbers from (seed, step, micro step, rank)       once a micro-batch
    forward                 summed loss and valid tokens of this rank's micro-batch
    backward                gradients are added up; ranks meet in the last micro-step alone
    unscale                 fp16 alone: gradients divided by the loss scale                     once a step, from here
    on_before_optimizer_step  callbacks
    prepare                 divide by the step's valid tokens over all ranks, clip, set rates, judge, record
    optimizer.step          the weights move; in fp16 not where a gradient is infinite
    settle                  take a spike back, free the gradients, balance experts, meet other workers, average
    on_train_batch_end      callbacks: log, checkpoint, validate, stop                          once a micro-batch

The loss is a sum over tokens; gradients are divided once a step by the valid tokens of the whole accumulation window
over all ranks, so that one rank with four micro-batches, four with one, and two with two give the same update.

Lightning's part: the loop over micro-batches and its counters, the order of callbacks, the device, the wrapper around
the model (DDP, FSDP), autocast and the loss scale. `CausalLMModule` passes its hooks on to the methods below:
`training_step` to `forward`, `configure_gradient_clipping` to `prepare`, the end of `optimizer_step` to `settle`.

Workers that train apart (DiLoCo) divide by their own valid tokens, and meet in `settle`, where gradients are gone and
weights are this step's.

An `objective` other than the loss of next tokens (preferences) takes its place in `share_of`: model and batch to a
micro-batch's sums. The reference model's log-probabilities were computed before the first step and are in the batch; a
second, frozen model would be called there, after the first.

A model in pipeline stages runs all micro-batches of a step at once, in the last one's `backward`; `forward` collects
them until then.

One of rewards (GRPO) writes there too: the loader reads questions ahead, and the answers to a micro-batch of them are
written inside `share_of`, with the weights that `settle` left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from lmtrain.accounting.batches import BatchPlan
from lmtrain.models.base import LanguageModel
from lmtrain.models.documents import token_positions
from lmtrain.models.head import Loss, LossTotal
from lmtrain.models.mixture_of_experts import balance, balanced_layers
from lmtrain.optim.fused import can_fold, fold_into_step
from lmtrain.parallel.gradients import global_norm, scale_gradients, sum_over_ranks
from lmtrain.parallel.outer_step import OuterStep
from lmtrain.training.hyperparameters import Hyperparameters
from lmtrain.training.objectives.objective import Objective, ObjectiveSums
from lmtrain.training.spikes import SpikeFilter, Undo
from lmtrain.training.step_metrics import StepMetrics, StepSums
from lmtrain.training.token_batch import TokenBatch, TrainingTokens, training_tokens
from lmtrain.training.weight_average import WeightAverage

Sums = LossTotal | ObjectiveSums


@final
@dataclass(kw_only=True, eq=False)
class OptimizerStep:
    """The parts of a step in their order, on the final (perhaps sharded) parameters.

    `spikes` decides on the steps to take back. `scales_loss`: the precision skips steps whose gradient is not finite.
    `outer` is the step of all ranks together, where each of them is a worker. `objective` takes the place of the loss
    of next tokens. `seen_flops` are a token's of attention to one that it sees, by window, for the account of rows with
    documents.
    """

    model: LanguageModel
    loss: Loss
    optimizer: Optimizer
    hyperparameters: Hyperparameters
    metrics: StepMetrics
    batch: BatchPlan
    gradient_clip_norm: float | None = None
    spikes: SpikeFilter | None = None
    weight_average: WeightAverage | None = None
    scales_loss: bool = False
    outer: OuterStep | None = None
    objective: Objective | None = None
    seen_flops: Mapping[int | None, float] = field(default_factory=dict[int | None, float])

    def __post_init__(self) -> None:
        """Look up the constants of all steps."""
        self._parameters = list(self.model.parameters())  # walking the modules takes a while
        self._balanced = balanced_layers(self.model)
        self._folds = can_fold(self.optimizer)
        # Lightning divides by the micro-steps and data parallelism averages over ranks: both are undone here.
        micro_steps, ranks = self.batch.accumulation_micro_steps, self.batch.num_data_ranks
        self._loss_weight = micro_steps * ranks / self.batch.tokens_per_step
        self._tokens_per_step = self.batch.tokens_per_step // (1 if self.outer is None else ranks)  # of a gradient
        self._whole_step = self.model.whole_step
        self._collected: list[TrainingTokens] = []
        self._undo: tuple[Undo, Tensor] | None = None

    def forward(self, batch: Tensor | TokenBatch) -> Tensor:
        """Return this micro-batch's share of the step's loss from ids [B, T + 1] or a TokenBatch."""
        if self._whole_step is not None:
            self._collected.append(training_tokens(batch))
            return self._collected[-1].inputs.new_zeros((), dtype=torch.float32)
        total, loss = self.share_of(batch)
        documents = batch.documents if isinstance(batch, TokenBatch) else None
        self.metrics.add_micro_step(total, self._attention_flops(documents))
        return loss

    def _attention_flops(self, *rows: Tensor | None) -> Tensor | None:
        """Count FLOPs of attention by the documents [B, T] of micro-batches, float64 []; None without documents."""
        found = [
            flops * (seen if window is None else seen.clamp(max=window)).sum(dtype=torch.float64)
            for documents in rows
            if documents is not None
            for seen in [token_positions(documents) + 1]
            for window, flops in self.seen_flops.items()
        ]
        return torch.stack(found).sum() if found else None

    def share_of(self, batch: Tensor | TokenBatch) -> tuple[Sums, Tensor]:
        """Return a micro-batch's sums, and the scalar to differentiate."""
        if self.objective is not None:
            total: Sums = self.objective(self.model, batch)
        else:
            inputs, targets, documents = training_tokens(batch)
            total = self.model(inputs, targets, self.loss, documents)
        return total, total.objective * self._loss_weight

    def backward(self, loss: Tensor, *arguments: Any, **settings: Any) -> None:
        """Add this micro-batch's gradients, or with a step's last one those of all stages."""
        if self._whole_step is None:
            loss.backward(*arguments, **settings)
        elif len(self._collected) == self.batch.accumulation_micro_steps:
            total = self._whole_step.run(self._collected, self.loss, scale=1 / self.batch.tokens_per_step)
            flops = self._attention_flops(*(one.documents for one in self._collected))
            self.metrics.add_micro_step(total, flops)
            self._collected = []

    def prepare(self, step: int, total_steps: int) -> None:
        """Make gradients and optimizer ready for step number `step`, counted from 0, and record the step."""
        sums = self.metrics.reduce_micro_steps()
        norm = self._divide_and_clip(sums.divisor)
        lr = self.hyperparameters.set_for(step, total_steps)
        skip = self._judge(sums, norm)
        self.metrics.finish_step(step + 1, sums=sums, gradient_norm=norm, lr=lr, skip=skip)

    def _divide_and_clip(self, count: Tensor) -> Tensor:
        """Divide gradients by the valid tokens, or an objective's units [], and clip them, in one pass.

        Return their norm [] before clipping.
        """
        divisor = count.clamp(min=1) / self._tokens_per_step  # no token of a whole step may carry loss
        find_norm = global_norm if self._whole_step is None else self._whole_step.norm
        undivided = find_norm(self._parameters)
        norm = undivided / divisor
        if self.gradient_clip_norm is not None:
            divisor = torch.maximum(divisor, undivided / self.gradient_clip_norm)
        if self._folds:
            fold_into_step(self.optimizer, divisor)
        else:
            scale_gradients(self._parameters, divisor.reciprocal())
        return norm

    def _judge(self, sums: StepSums, norm: Tensor) -> Tensor | None:
        """Return whether the step is skipped or a spike, bool [], None where none is; keep the state to put back."""
        if self.spikes is None:
            return ~norm.isfinite() if self.scales_loss else None
        is_spike = self.spikes.judge(torch.stack([sums.loss, norm.double()]))
        if self.spikes.takes_back:
            self._undo = Undo(self.optimizer), is_spike
        return is_spike

    def settle(self, step: int, *, is_last: bool = False) -> None:
        """Finish step number `step`, counted from 0: undo, free, balance, synchronize, average; `is_last` of a run.

        Gradients go at once: Lightning frees them after the next forward pass, at whose end memory is fullest.
        """
        if self._undo is not None:
            undo, skip = self._undo
            undo.where(skip)
            self._undo = None
        for parameter in self._parameters:
            parameter.grad = None
        balance(self._balanced, sum_over_ranks if self._whole_step is None else self._whole_step.sum_over_copies)
        if self.outer is not None:
            self.outer.after(step, is_last=is_last)
        if self.weight_average is not None:
            self.weight_average.update(self.model, step=step)
