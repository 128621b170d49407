"""A trained model in Python: write texts, hold conversations, score texts.

model = lmtrain.load("runs/first")              # or a checkpoint, an imported folder, a Hugging Face folder
print(model.generate("Once upon a time", num_new_tokens=50))
print(model.chat([{"role": "user", "content": "How are you?"}]))
print(model.score("some text").bits_per_byte)
"""

from collections.abc import Mapping, Sequence
from typing import Any, final, overload

from lmtrain.evaluation.bits_per_byte import TextScore
from lmtrain.inference.chat import chat_format
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling
from lmtrain.models.base import LanguageModel
from lmtrain.run.schema.signatures import require_arguments
from lmtrain.run.stored_runs.loaded_models import score_texts
from lmtrain.tokenizers.base import Tokenizer, require_text

BATCH_TOKENS = 16_384

Messages = Sequence[Mapping[str, Any]]


@final
class Model:
    """A model with its tokenizer, ready to write and to score.

    Sampling settings are those of `lmtrain generate`, with the same defaults and the same texts for the same seed.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    @property
    def name(self) -> str:
        """Return the name of the run or folder."""
        return self._loaded.name

    @property
    def module(self) -> LanguageModel:
        """Return the PyTorch module, in fp32 and evaluation mode."""
        return self._loaded.model

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer: `encode(text)` and `decode(ids)`."""
        return self._loaded.tokenizer

    @overload
    def generate(self, prompt: str, *, num_new_tokens: int = ..., **settings: Any) -> str: ...
    @overload
    def generate(self, prompt: list[str], *, num_new_tokens: int = ..., **settings: Any) -> list[str]: ...
    def generate(
        self,
        prompt: str | list[str],
        *,
        num_new_tokens: int = 200,
        temperature: float = 0.8,
        top_k: int | None = 50,
        stop: Sequence[str] = (),
        seed: int | None = 0,
        **sampling: Any,
    ) -> str | list[str]:
        """Return the continuation of a prompt, or of several, which are written together.

        At most `num_new_tokens`; a text ends earlier at the end of its document or before a `stop` string.
        `temperature` 0 always takes the likeliest token; `top_k` None samples among all. `seed` None differs each
        time. Further settings: `top_p`, `min_p`, `repetition_penalty`, `presence_penalty`, `frequency_penalty`,
        `logit_bias`.

        Raises:
            ConfigurationError: A setting is unknown or out of its range.
            DataError: A prompt is not UTF-8 text.
        """
        prompts = prompt if isinstance(prompt, list | tuple) else [prompt]
        require_arguments("generate", sampling, Model.generate, Sampling)
        settings = Sampling(temperature=temperature, top_k=top_k, **sampling)
        ids = [self._loaded.encode(one) for one in prompts]
        texts = self._write(ids, settings, num_new_tokens=num_new_tokens, stops=tuple(stop), seed=seed)
        return texts if isinstance(prompt, list | tuple) else texts[0]

    def chat(
        self,
        messages: Messages,
        *,
        num_new_tokens: int = 512,
        temperature: float = 0.8,
        top_k: int | None = 50,
        stop: Sequence[str] = (),
        seed: int | None = 0,
        **sampling: Any,
    ) -> str:
        """Return the assistant's next turn after messages, each with `role` and `content`, the last one of the user.

        The conversation is written in the model's own chat format; settings are those of `generate`.

        Raises:
            DataError: The messages are not a conversation, or the model's chat template refuses them.
        """
        require_arguments("chat", sampling, Model.chat, Sampling)
        style = chat_format(self._loaded)
        settings = Sampling(temperature=temperature, top_k=top_k, **sampling)
        stops = (*style.stops, *stop)
        prompt = style.prompt(messages)
        return self._write([prompt], settings, num_new_tokens=num_new_tokens, stops=stops, seed=seed)[0].strip()

    def score(self, text: str, *, context_tokens: int | None = None) -> TextScore:
        """Return the bits per byte and nats per token of a text, as `lmtrain evaluate --text` does.

        The text is scored in windows of `context_tokens`; None takes the context of the training.

        Raises:
            ConfigurationError: The context is longer than the model's.
            DataError: The text is empty, or not UTF-8 text.
        """
        require_text("text", text)
        return score_texts(self._loaded, [text], context_tokens=context_tokens, batch_tokens=BATCH_TOKENS)

    def _write(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        *,
        num_new_tokens: int,
        stops: tuple[str, ...],
        seed: int | None,
    ) -> list[str]:
        requests = [
            Request(
                prompt=prompt,
                num_new_tokens=num_new_tokens,
                sampling=sampling,
                end_ids=self._loaded.end_ids,
                stops=stops,
                seed=seed,
                index=index,
                slides=True,
            )
            for index, prompt in enumerate(prompts)
        ]
        return [each.text for each in self._loaded.engine().write(requests)]
