"""Let the model speak: generate from a fixed prompt at the end of a run, and during it if asked."""

import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import takewhile
from typing import Final, cast

import lightning.pytorch as pl
import torch
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError
from lmtrain.inference.loaded_model import ids_of_ends
from lmtrain.inference.sampling import Sampling, generate
from lmtrain.models.base import LanguageModel
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat import render_prompt, writes_conversations
from lmtrain.tracking.atomic_files import LineFile, storage_problem
from lmtrain.tracking.redaction import redact
from lmtrain.training.context import PlainModel, RunCallback, RunContext
from lmtrain.training.intervals import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.weight_average import evaluation_weights

_LOG = logging.getLogger(__name__)
GREETING = "Hello"


class TextSamples(RunCallback):
    """Append {step, prompt, text} to samples.jsonl after the last step and every `every_steps` steps.

    An empty prompt starts a new document. In a run the average of the weights speaks, if there is one; and if the run
    learns from conversations, the prompt is a user's turn ("Hello" if it is empty), and the text its answer. The same
    seed draws the same random numbers at every step. On a full disk a sample is lost, not the run.

    In a plain Trainer `tokenizer` makes ids of the prompt, and the module must return logits [B, T, V] for ids [B, T],
    at most `context_tokens` of them; the file is in `lmtrain/` below the Trainer's `default_root_dir`.

    Example:
        >>> samples = lmtrain.callbacks.TextSamples(tokenizer=tokenizer, prompt="Once", context_tokens=256)
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
        tokenizer: Tokenizer | None = None,
        context_tokens: int = 1024,
        context: RunContext | None = None,
    ) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.text_samples.every_steps"))
        require_count("callbacks.text_samples.num_new_tokens", num_new_tokens)
        self._tokenizer = tokenizer if context is None else context.tokenizer
        has_answers = context is not None and context.dataset.split("train").has_loss_mask
        self._is_chat = context is not None and has_answers and writes_conversations(context.tokenizer)
        self._prompt = prompt or (GREETING if self._is_chat else "")
        self._num_new_tokens, self._context_tokens = num_new_tokens, context_tokens
        self._sampling = Sampling(temperature=temperature, top_k=top_k)
        self._seed = seed

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self._tokenizer is None:
            raise ConfigurationError("TextSamples: must have tokenizer= in a plain Trainer; add it.")

    @override
    def on_due_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Generate on every rank, since a sharded model needs them all; write on the first."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # training steps still queued are not part of the pause
        own = pl_module if isinstance(pl_module, CausalLMModule) else None
        average = own.weight_average if own else None
        with (
            self.run.events.pause("text_samples", step=trainer.global_step),
            evaluation_weights(own.weight_holders, own.language_model) if own else nullcontext(),
            average.in_place_of(own.language_model) if own and average else nullcontext(),
        ):
            text = self._generate(trainer, pl_module)
        if trainer.is_global_zero:
            prompt = f"User: {self._prompt}\nAssistant: " if self._is_chat else self._prompt
            self._append({"step": trainer.global_step, "prompt": prompt, "text": text})

    def _generate(self, trainer: pl.Trainer, module: pl.LightningModule) -> str:
        """Return the prompt's continuation, without the prompt."""
        tokenizer = self._tokenizer
        assert tokenizer is not None
        ids = chat_opening(tokenizer, self._prompt) if self._is_chat else tokenizer.encode(self._prompt)
        ids = ids or [tokenizer.end_of_text_id]
        plain = PlainModel(module, max_context_tokens=self._context_tokens)
        model = module.language_model if isinstance(module, CausalLMModule) else cast("LanguageModel", plain)
        # One text has a shape of its own, not worth compiling for.
        with trainer.precision_plugin.forward_context(), torch.compiler.set_stance("force_eager"):
            tokens = generate(
                model,
                torch.tensor([ids], device=trainer.strategy.root_device),
                num_new_tokens=self._num_new_tokens,
                sampling=self._sampling,
                seed=self._seed,
            )
        new_ids: list[int] = tokens[0, len(ids) :].tolist()
        return tokenizer.decode(up_to_the_end(new_ids, tokenizer) if self._is_chat else new_ids)

    def _append(self, sample: dict[str, str | int]) -> None:
        file = LineFile(self.run.folder, "samples.jsonl")
        if problem := file.append([json.dumps(redact(sample), ensure_ascii=False) + "\n"]):
            _LOG.error("The sample of step %d is lost. %s", sample["step"], storage_problem(file.path, problem))
        file.close()


def chat_opening(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a user's turn up to the start of its answer, behind an end-of-text id as in training."""
    return [tokenizer.end_of_text_id, *render_prompt(tokenizer, [{"role": "user", "content": text}]).tolist()]


def up_to_the_end(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Return an answer's ids before its end token."""
    ends = ids_of_ends(tokenizer)
    return list(takewhile(lambda token: token not in ends, ids))


TEXT_SAMPLES_FACTS: Final = CallbackFacts(acts_between_steps=True)
