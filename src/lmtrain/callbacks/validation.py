"""Measure how well the model predicts held-out text: before the first step, during the run, and after the last."""

from collections.abc import Iterable
from typing import Any, cast

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
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
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.models.head import Loss
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.training.context import PlainModel, RunCallback, RunContext
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.intervals import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.weight_average import evaluation_weights


class Validation(RunCallback):
    """Append bits per byte, loss (nats per token), scored bytes and tokens read of held-out text, on every rank.

    During the run it is measured `num_passes` times, evenly, or every `every_steps` steps; with neither, only before
    and after.

    In a run a pass reads `max_tokens` of a split (None: the whole split), and never more than the whole run's training
    tokens; but it reads on to the end of the first words with loss. A resumed run reads what it read before, so that
    its scores compare, unless `max_tokens` or `split` itself is changed. The weights are those for evaluation, if an
    optimizer has others for training; of an average of the weights, `validation/ema_bits_per_byte` and
    `validation/ema_loss` come with them. Of a mixture, `validation/NAME/bits_per_byte` is of each source; the metrics
    without a NAME are of the first.

    In a plain Trainer `batches` are pairs (inputs, targets) of ids [B, T], -100 for no target, such as a DataLoader,
    and `tokenizer` says how many bytes an id stands for. The module must return logits [B, T, V] for inputs.

    Example:
        >>> validation = lmtrain.callbacks.Validation(batches=loader, tokenizer=tokenizer, every_steps=100)
    """

    def __init__(
        self,
        *,
        num_passes: int | None = None,
        every_steps: int | None = None,
        max_tokens: int | None = None,
        split: str = "validation",
        batches: Iterable[tuple[Tensor, ...]] | None = None,
        tokenizer: Tokenizer | None = None,
        context: RunContext | None = None,
    ) -> None:
        interval = StepInterval(every_steps, num_times=num_passes, key="callbacks.validation.every_steps")
        super().__init__(context, step_interval=interval)
        passes = HeldOutPasses(split=split, num_passes=num_passes, every_steps=every_steps)  # refuses wrong ones
        if max_tokens is not None and max_tokens < 2:
            raise ConfigurationError(f"callbacks.validation.max_tokens: must be 2 or more, or null, got {max_tokens}.")
        self._split, self._batches, self._tokenizer = split, batches, tokenizer
        self._asked = {"split": split, "max_tokens": max_tokens}
        self._max_tokens = max_tokens or 0
        if context is not None:
            self._tokenizer = context.tokenizer
            passes.require_split(context.dataset.splits, of=f"data set {context.dataset.folder}")
            if context.dataset.split(split).first_learned is None:
                raise DataError(
                    f"data set {context.dataset.folder} has no token with loss in its split '{split}'; prepare more "
                    "conversations, or train without scores: callbacks.validation=null."
                )
            most = context.plan.expected_tokens or context.plan.horizon.tokens
            self._max_tokens = min(most, max_tokens or most)

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self._tokenizer is None or (self.context is None and self._batches is None):
            raise ConfigurationError("Validation: must have batches= and tokenizer= in a plain Trainer; add them.")
        self._token_bytes = torch.from_numpy(self._tokenizer.token_bytes())

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step == 0:
            self.on_due_step(trainer, pl_module)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**self._asked, "read_tokens": self._max_tokens}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if all(state_dict[name] == value for name, value in self._asked.items()):
            self._max_tokens = int(state_dict["read_tokens"])

    @override
    def on_due_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # training steps still queued are not part of the pause
        step = trainer.global_step
        with self.run.events.pause("validation", step=step):
            if isinstance(pl_module, CausalLMModule) and self.context is not None:
                num_bytes, metrics = self._scores_in_run(trainer, pl_module)
            else:
                score = self._score(trainer, PlainModel(pl_module), self._plain_batches(trainer), CrossEntropy())
                num_bytes, metrics = score.num_bytes, _metrics(score)
        counts: dict[str, float] = {VALIDATION_BYTES: num_bytes}
        if self.context is not None:
            scores = self.context.scores
            scores.step, scores.metrics, scores.num_bytes = step, metrics, num_bytes
            counts[VALIDATION_TOKENS] = self._most_tokens(self.context.dataset)
        self.run.append(step, metrics | counts)

    def _scores_in_run(self, trainer: pl.Trainer, module: CausalLMModule) -> tuple[int, dict[str, float]]:
        """Return the bytes of the first source, and the metrics of all sources and of the average of the weights."""
        datamodule: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]  # set by fit(datamodule=)
        sources, model = [*datamodule.mixture.datasets], module.language_model
        with evaluation_weights(module.weight_holders, model):
            found = {
                name: self._score(trainer, model, self._held_out(datamodule, name), module.loss) for name in sources
            }
            metrics = _metrics(found[sources[0]])
            if (average := module.weight_average) is not None:
                with average.in_place_of(model):
                    held_out = self._held_out(datamodule, sources[0])
                    of_average = _metrics(self._score(trainer, model, held_out, module.loss))
                metrics |= {averaged(name): value for name, value in of_average.items()}
        for name, of_source in found.items() if len(sources) > 1 else ():
            metrics[f"validation/{name}/bits_per_byte"] = of_source.bits_per_byte
        return found[sources[0]].num_bytes, metrics

    def _plain_batches(self, trainer: pl.Trainer) -> Iterable[tuple[Tensor, ...]]:
        if self._batches is not None:
            return self._batches
        datamodule: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        return self._held_out(datamodule, next(iter(datamodule.mixture.datasets)))

    def _held_out(self, datamodule: TokenDataModule, source: str) -> Iterable[tuple[Tensor, ...]]:
        most = self._most_tokens(datamodule.mixture.datasets[source])
        return datamodule.held_out_batches(self._split, max_tokens=most, source=source)

    def _most_tokens(self, dataset: Dataset) -> int:
        """Return how many tokens of a data set's split are read."""
        split = dataset.split(self._split)
        return min(split.num_tokens, max(self._max_tokens, split.first_learned or 0))

    def _score(
        self, trainer: pl.Trainer, model: nn.Module, batches: Iterable[tuple[Tensor, ...]], loss: Loss
    ) -> BitsPerByte:
        """Score by the nats of a loss (plain cross-entropy), in the dtype of training."""
        num_copies = 1 if self.context is None else self.context.plan.batch.num_copies
        with trainer.precision_plugin.forward_context():
            return evaluate(
                cast("LanguageModel", model), batches, token_bytes=self._token_bytes, loss=loss, num_copies=num_copies
            )


def _metrics(score: BitsPerByte) -> dict[str, float]:
    return {VALIDATION_LOSS: score.nats_per_token, BITS_PER_BYTE: score.bits_per_byte}


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
