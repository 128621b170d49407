"""A model of ours as the Language Model Evaluation Harness asks it: https://github.com/EleutherAI/lm-evaluation-harness.

Its package is the extra `eval`, imported with this module alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

from lm_eval import utils
from lm_eval.api.model import TemplateLM

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.evaluation.scored_rows import RowScore, ScoredRow, score_rows
from lmtrain.models.base import LanguageModel

MOST_NEW_TOKENS = 256  # where a task does not say; the harness's own for a model of transformers
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")

Scored = tuple[float, bool]


class Texts(Protocol):
    """The text side of a model: ids of strings with special tokens in them, conversations, and writing."""

    name: str
    first_id: int
    end_id: int

    def encode(self, text: str, *, begins: bool) -> list[int]:
        """Return a text's ids; `begins` puts before it the ids that its tokenizer in transformers does."""
        ...

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return a conversation as text up to the start of the answer."""
        ...

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        num_new_tokens: int,
        stops: Sequence[str],
        sampling: Mapping[str, Any],
    ) -> list[str]:
        """Return the text written after each prompt."""
        ...


@final
class HarnessModel(TemplateLM):
    """Scores and writes as the harness's own model of transformers does, in batches of like lengths."""

    def __init__(self, model: LanguageModel, texts: Texts, *, batch_tokens: int) -> None:
        super().__init__()
        self._model, self._texts, self._batch_tokens = model, texts, batch_tokens

    @property
    def eot_token_id(self) -> int:
        """Return the id of a text's end."""
        return self._texts.end_id

    @property
    def prefix_token_id(self) -> int:
        """Return the id before a text without a context."""
        return self._texts.first_id

    @property
    def tokenizer_name(self) -> str:
        """Return a name for the harness's cache of requests."""
        return self._texts.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:  # noqa: FBT001, FBT002 (the harness's)
        """Return a name for the way conversations are written; a choice among several templates is refused."""
        if isinstance(chat_template, str):
            raise ConfigurationError(f"chat template {chat_template!r}: this model has one; leave its name out.")
        return "of the model" if chat_template else None

    def apply_chat_template(
        self,
        chat_history: list[dict[str, str]],
        add_generation_prompt: bool = True,  # noqa: FBT001, FBT002 (the harness's)
    ) -> str:
        """Return a conversation as text: up to the answer's start, or with the last turn as the answer's beginning."""
        if add_generation_prompt:
            return self._texts.prompt(chat_history)
        return self._texts.prompt(chat_history[:-1]) + chat_history[-1]["content"]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:  # noqa: FBT001
        """Return a text's ids."""
        return self._texts.encode(string, begins=add_special_tokens is not False)

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[Scored]:
        scores = self._scores([(before, after) for _, before, after in requests])
        found = [(-score.nats, score.is_likeliest) for score in scores]
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:  # noqa: ARG002, FBT001, FBT002
        """Return the log-probability of each whole text, in windows of the model's context."""
        windows: list[tuple[list[int], list[int]]] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            found = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._model.max_context_tokens,
                context_len=1,
            )
            windows += [utils.make_disjoint_window(window) for window in found]
            owners += [number] * (len(windows) - len(owners))
        totals = [0.0] * len(requests)
        for owner, score in zip(owners, self._scores(windows), strict=True):
            totals[owner] -= score.nats
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002, FBT001, FBT002
        """Return what is written after each context, those of like settings together."""
        written: list[str] = [""] * len(requests)
        settings = [dict(request.args[1]) for request in requests]
        for one in {repr(each): each for each in settings}.values():
            places = [place for place, each in enumerate(settings) if each == one]
            num_new_tokens, stops, sampling = self._settings(one)
            room = self._model.max_context_tokens - num_new_tokens
            prompts = [self.tok_encode(requests[place].args[0])[-room:] for place in places]
            texts = self._texts.write(prompts, num_new_tokens=num_new_tokens, stops=stops, sampling=sampling)
            for place, text in zip(places, texts, strict=True):
                written[place] = text
        return written

    def _scores(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[RowScore]:
        rows = [ScoredRow([*before, *after], len(before)) for before, after in pairs]
        return score_rows(self._model, rows, batch_tokens=self._batch_tokens)

    def _settings(self, given: Mapping[str, Any]) -> tuple[int, list[str], dict[str, Any]]:
        """Return the tokens to write, the ends, and the sampling of a task's generation settings."""
        known = (*LENGTHS, *SAMPLING, "until", "do_sample")
        if unknown := [key for key in given if key not in known]:
            near = suggest(unknown[0], known)
            raise ConfigurationError(
                f"generation setting {unknown[0]} is unknown here; known: {', '.join(known)}.{near}"
            )
        length = next((int(given[key]) for key in LENGTHS if given.get(key) is not None), MOST_NEW_TOKENS)
        context = self._model.max_context_tokens
        if not 0 < length < context:
            raise ConfigurationError(
                f"max_gen_toks={length} is not below the model's context of {context} tokens; nearest valid: "
                f"--num-new-tokens {context // 2}."
            )
        until = given.get("until") or []
        sampling = {key: given[key] for key in SAMPLING if given.get(key) is not None}
        if given.get("do_sample", sampling.get("temperature", 0) > 0):
            sampling.setdefault("temperature", 1.0)
        else:
            sampling["temperature"] = 0.0
        return length, [until] if isinstance(until, str) else list(until), sampling
