"""Let the model speak: generate from a fixed prompt at the end of a run, and during it where asked."""

import json
import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import takewhile
from typing import Any, Final

import lightning.pytorch as pl
import torch
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import DataError
from lmtrain.inference.loaded_model import ids_of_ends
from lmtrain.inference.sampling import Sampling, generate
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat import chat_style, render_prompt
from lmtrain.tracking.atomic_files import LineFile, storage_problem
from lmtrain.tracking.redaction import redact
from lmtrain.training.context import RunContext
from lmtrain.training.intervals import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.weight_average import evaluation_weights

_LOG = logging.getLogger(__name__)
GREETING = "Hello"
TIMED_TOKENS: Final = 4  # before the first sample, under a budget of time


class TextSamples(pl.Callback):
    """Append {step, prompt, text} to the run's samples.jsonl after the last step and every `every_steps` steps.

    The average of the weights speaks, where the run keeps one.

    An empty prompt starts a new document. Where a run learns from conversations, the prompt is a user's turn ("Hello"
    where it is empty), and the text its answer. The same seed draws the same random numbers at every step. On a full
    disk a sample is lost, not the run.
    """

    def __init__(
        self,
        *,
        prompt: str = "",
        num_new_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int | None = None,
        every_steps: int | None = None,
        seed: int = 0,
        context: RunContext,
    ) -> None:
        super().__init__()
        require_count("callbacks.text_samples.num_new_tokens", num_new_tokens)
        self._context = context
        self._is_chat = context.dataset.split("train").has_loss_mask and has_chat_style(context.tokenizer)
        self._prompt = prompt or (GREETING if self._is_chat else "")
        self._num_new_tokens = num_new_tokens
        self._sampling = Sampling(temperature=temperature, top_k=top_k)
        self._seed = seed
        self._interval = StepInterval(
            every_steps, last_step=context.last_step, key="callbacks.text_samples.every_steps"
        )

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._context.last_step.seconds is None:
            return
        assert isinstance(pl_module, CausalLMModule)
        with evaluation_weights(pl_module.weight_holders, pl_module.language_model):
            self._generate(trainer, pl_module, num_new_tokens=1)
            began = time.monotonic()
            self._generate(trainer, pl_module, num_new_tokens=TIMED_TOKENS)
            took = time.monotonic() - began
        self._context.expected_pauses["text_samples"] = took * self._num_new_tokens / TIMED_TOKENS

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._interval.is_due(trainer, batch_idx):
            self._sample(trainer, pl_module)

    def _sample(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Generate on every rank, since a sharded model needs them all; write on the first."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # training steps still queued are not part of the pause
        assert isinstance(module, CausalLMModule)
        average = module.weight_average
        with (
            self._context.events.pause("text_samples", step=trainer.global_step),
            evaluation_weights(module.weight_holders, module.language_model),
            average.in_place_of(module.language_model) if average else nullcontext(),
        ):
            text = self._generate(trainer, module, num_new_tokens=self._num_new_tokens)
        if self._context.is_main_process:
            prompt = f"User: {self._prompt}\nAssistant: " if self._is_chat else self._prompt
            self._append({"step": trainer.global_step, "prompt": prompt, "text": text})

    def _generate(self, trainer: pl.Trainer, module: CausalLMModule, *, num_new_tokens: int) -> str:
        """Return the prompt's continuation, without the prompt."""
        tokenizer = self._context.tokenizer
        ids = chat_opening(tokenizer, self._prompt) if self._is_chat else tokenizer.encode(self._prompt)
        ids = ids or [tokenizer.end_of_text_id]
        device = trainer.strategy.root_device
        # One text has a shape of its own, not worth compiling for.
        with trainer.precision_plugin.forward_context(), torch.compiler.set_stance("force_eager"):
            tokens = generate(
                module.language_model,
                torch.tensor([ids], device=device),
                num_new_tokens=num_new_tokens,
                sampling=self._sampling,
                seed=self._seed,
            )
        new_ids: list[int] = tokens[0, len(ids) :].tolist()
        return tokenizer.decode(up_to_the_end(new_ids, tokenizer) if self._is_chat else new_ids)

    def _append(self, sample: dict[str, str | int]) -> None:
        file = LineFile(self._context.folder, "samples.jsonl")
        if problem := file.append([json.dumps(redact(sample), ensure_ascii=False) + "\n"]):
            _LOG.error("The sample of step %d is lost. %s", sample["step"], storage_problem(file.path, problem))
        file.close()


def has_chat_style(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer has the special tokens of conversations."""
    try:
        return bool(chat_style(tokenizer).special_tokens)
    except DataError:
        return False


def chat_opening(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a user's turn up to the start of its answer, behind an end-of-text id as in training."""
    return [tokenizer.end_of_text_id, *render_prompt(tokenizer, [{"role": "user", "content": text}]).tolist()]


def up_to_the_end(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Return an answer's ids before its end token."""
    ends = ids_of_ends(tokenizer)
    return list(takewhile(lambda token: token not in ends, ids))


def text_samples_facts() -> CallbackFacts:
    """Write a text."""
    return CallbackFacts(acts_between_steps=True)
