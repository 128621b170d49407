"""Measure how well the model predicts held-out text: before the first step, during the run, and after the last."""

from typing import Any

import lightning.pytorch as pl
import torch
from typing_extensions import override

from lmtrain.accounting.observed.metric_names import (
    BITS_PER_BYTE,
    VALIDATION_BYTES,
    VALIDATION_LOSS,
    VALIDATION_TOKENS,
    averaged,
)
from lmtrain.accounting.options.parts import CallbackFacts, HeldOutPasses
from lmtrain.data.shards import Dataset
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.evaluation.bits_per_byte import BitsPerByte, evaluate
from lmtrain.training.context import RunContext
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.intervals import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.weight_average import evaluation_weights


class Validation(pl.Callback):
    """Append bits per byte, loss (nats per token), scored bytes and tokens read of a held-out split, on every rank.

    The weights are those for evaluation, where an optimizer has others for training. Of an average of the weights,
    `validation/ema_bits_per_byte` and `validation/ema_loss` come with them.

    Of a mixture, `validation/NAME/bits_per_byte` is of each source; the metrics without a NAME are of the first.

    During the run it is measured `num_passes` times, evenly, or every `every_steps` steps; with neither, only before
    and after. A pass reads `max_tokens` (None: the whole split), and never more than the whole run's training tokens: a
    run of two steps does not validate for minutes; but it reads on to the end of the first words with loss. A resumed
    run, of a longer budget too, reads what it read before, so that its scores compare, unless `max_tokens` or `split`
    itself is changed.
    """

    def __init__(
        self,
        *,
        num_passes: int | None = None,
        every_steps: int | None = None,
        max_tokens: int | None = None,
        split: str = "validation",
        context: RunContext,
    ) -> None:
        super().__init__()
        passes = HeldOutPasses(split=split, num_passes=num_passes, every_steps=every_steps)  # refuses wrong ones
        if max_tokens is not None and max_tokens < 2:
            raise ConfigurationError(
                f"callbacks.validation.max_tokens={max_tokens} is below 2; null reads the whole split."
            )
        passes.require_split(context.dataset.splits, of=f"data set {context.dataset.folder}")
        if context.dataset.split(split).first_learned is None:
            raise DataError(
                f"data set {context.dataset.folder} has no token with loss in its split '{split}', and others have no "
                "score; prepare more conversations, or train without scores: callbacks.validation=null."
            )
        most = context.plan.expected_tokens or context.plan.horizon.tokens
        self._context = context
        self._split = split
        self._asked = {"split": split, "max_tokens": max_tokens}
        self._max_tokens = min(most, max_tokens or most)
        self._token_bytes = torch.from_numpy(context.tokenizer.token_bytes())
        self._interval = StepInterval(
            every_steps,
            num_times=num_passes,
            last_step=context.last_step,
            key="callbacks.validation.every_steps",
        )

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step == 0:
            self._validate(trainer, pl_module)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._interval.is_due(trainer, batch_idx):
            self._validate(trainer, pl_module)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**self._asked, "read_tokens": self._max_tokens}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if all(state_dict[name] == value for name, value in self._asked.items()):
            self._max_tokens = int(state_dict["read_tokens"])

    def _validate(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # training steps still queued are not part of the pause
        step = trainer.global_step
        datamodule: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]  # set by fit(datamodule=)
        assert isinstance(datamodule, TokenDataModule)
        first, *others = datamodule.mixture.datasets
        assert isinstance(module, CausalLMModule)
        weights = evaluation_weights(module.weight_holders, module.language_model)
        with self._context.events.pause("validation", step=step), weights:
            result = self._evaluate(trainer, module, datamodule, source=first)
            of_sources = {name: self._evaluate(trainer, module, datamodule, source=name) for name in others}
            of_average = self._evaluate_average(trainer, module, datamodule, source=first)
        metrics = {VALIDATION_LOSS: result.nats_per_token, BITS_PER_BYTE: result.bits_per_byte}
        if of_average is not None:
            metrics[averaged(VALIDATION_LOSS)] = of_average.nats_per_token
            metrics[averaged(BITS_PER_BYTE)] = of_average.bits_per_byte
        for name, of_source in ({first: result} | of_sources if others else {}).items():
            metrics[f"validation/{name}/bits_per_byte"] = of_source.bits_per_byte
        scores = self._context.scores
        scores.step, scores.metrics, scores.num_bytes = step, metrics, result.num_bytes
        read = self._most_tokens(self._context.dataset)
        self._context.append(step, metrics | {VALIDATION_BYTES: result.num_bytes, VALIDATION_TOKENS: read})

    def _most_tokens(self, dataset: Dataset) -> int:
        """Return how many tokens of a data set's split are read."""
        split = dataset.split(self._split)
        return min(split.num_tokens, max(self._max_tokens, split.first_learned or 0))

    def _evaluate_average(
        self, trainer: pl.Trainer, module: pl.LightningModule, datamodule: TokenDataModule, *, source: str
    ) -> BitsPerByte | None:
        """Score the average of the weights, where the run keeps one."""
        assert isinstance(module, CausalLMModule)
        if module.weight_average is None:
            return None
        with module.weight_average.in_place_of(module.language_model):
            return self._evaluate(trainer, module, datamodule, source=source)

    def _evaluate(
        self, trainer: pl.Trainer, module: pl.LightningModule, datamodule: TokenDataModule, *, source: str
    ) -> BitsPerByte:
        """Score by the nats of the run's own loss (plain cross-entropy), in the dtype of training."""
        assert isinstance(module, CausalLMModule)
        most = self._most_tokens(datamodule.mixture.datasets[source])
        batches = datamodule.held_out_batches(self._split, max_tokens=most, source=source)
        with trainer.precision_plugin.forward_context():
            return evaluate(
                module.language_model,
                batches,
                token_bytes=self._token_bytes,
                loss=module.loss,
                num_copies=self._context.plan.batch.num_copies,
            )


def validation_facts(
    *,
    num_passes: int | None = None,
    every_steps: int | None = None,
    max_tokens: int | None = None,
    split: str = "validation",
) -> CallbackFacts:
    """Read held-out text, before the run too."""
    passes = HeldOutPasses(split=split, num_passes=num_passes, every_steps=every_steps, max_tokens=max_tokens)
    return CallbackFacts(acts_between_steps=True, reads=passes)
