"""A loaded model as the Language Model Evaluation Harness asks it: https://github.com/EleutherAI/lm-evaluation-harness.

Importing this module needs lm-eval, the extra `eval`. Texts of a task come from its data, so that a special token's
name in them is that token, as in transformers.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, final

from lm_eval import utils
from lm_eval.api.model import TemplateLM

from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.evaluation.scored_rows import RowScore, ScoredRow, score_rows
from lmtrain.inference.chat import ChatFormat, chat_format
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling

MOST_NEW_TOKENS = 256  # where a task does not say; the harness's default for a model of transformers
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@final
class HarnessModel(TemplateLM):
    """Scores and writes as the harness's model of transformers does, in batches of like lengths."""

    def __init__(self, loaded: LoadedModel, *, batch_tokens: int) -> None:
        super().__init__()
        self._loaded, self._batch_tokens = loaded, batch_tokens
        self._specials = loaded.tokenizer.special_tokens
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    @property
    def eot_token_id(self) -> int:
        """Return the id of a text's end."""
        return self._loaded.tokenizer.end_of_text_id

    @property
    def prefix_token_id(self) -> int:
        """Return the id before a text without a context."""
        return self._loaded.first_id

    @property
    def tokenizer_name(self) -> str:
        """Return a name for the harness's cache of requests."""
        return self._loaded.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:  # noqa: FBT001, FBT002 (the harness's)
        """Return a name for the way conversations are written."""
        return "of the model" if chat_template else None

    def apply_chat_template(
        self,
        chat_history: list[dict[str, str]],
        add_generation_prompt: bool = True,  # noqa: FBT001, FBT002 (the harness's)
    ) -> str:
        """Return a conversation as text: up to the answer's start, or with the last turn as the answer's beginning."""
        if add_generation_prompt:
            return self._text(self._format.prompt(chat_history))
        return self._text(self._format.prompt(chat_history[:-1])) + chat_history[-1]["content"]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:  # noqa: FBT001
        """Return a text's ids, after those that its tokenizer in transformers puts before it."""
        pieces = [piece for piece in self._cut.split(string) if piece]
        has_begin = bool(pieces) and self._specials.get(pieces[0]) == self.prefix_token_id
        ids = list[int]() if add_special_tokens is False or has_begin else [*self._loaded.added_ids]
        for piece in pieces:
            ids += [self._specials[piece]] if piece in self._specials else self._loaded.tokenizer.encode(piece)
        return ids

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
        for texts, _, after in requests:
            if not after:  # the harness's model of transformers asserts this
                raise DataError(f"continuation: must have at least one token after {str(texts and texts[0])[-80:]!r}.")
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
                max_seq_len=self._loaded.model.max_context_tokens,
                context_len=1,
            )
            windows += [utils.make_disjoint_window(window) for window in found]
            owners += [number] * (len(windows) - len(owners))
        totals = [0.0] * len(requests)
        for owner, score in zip(owners, self._scores(windows), strict=True):
            totals[owner] -= score.nats
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002, FBT001, FBT002
        """Return the text written after each context, all of them together."""
        asked = [self._request(index, *request.args) for index, request in enumerate(requests)]
        return [each.text for each in self._loaded.engine().write(asked)]

    def _scores(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[RowScore]:
        rows = [ScoredRow([*before, *after], len(before)) for before, after in pairs]
        return score_rows(self._loaded.model, rows, batch_tokens=self._batch_tokens)

    def _request(self, index: int, text: str, settings: Mapping[str, Any]) -> Request:
        """Return a task's context and generation settings as a request."""
        known = (*LENGTHS, *SAMPLING, "until", "do_sample")
        if unknown := [key for key in settings if key not in known]:
            near = suggest(unknown[0], known)
            raise ConfigurationError(f"generation setting {unknown[0]}: must be one of {', '.join(known)}.{near}")
        length = next((int(settings[key]) for key in LENGTHS if settings.get(key) is not None), MOST_NEW_TOKENS)
        context = self._loaded.model.max_context_tokens
        if not 0 < length < context:
            raise ConfigurationError(
                f"max_gen_toks: must be below {context}, the model's context, got {length}; give --num-new-tokens."
            )
        sampling = {key: settings[key] for key in SAMPLING if settings.get(key) is not None}
        if settings.get("do_sample", sampling.get("temperature", 0) > 0):
            sampling.setdefault("temperature", 1.0)
        else:
            sampling["temperature"] = 0.0
        until = settings.get("until") or []
        return Request(
            prompt=self.tok_encode(text)[length - context :] or [self.prefix_token_id],
            num_new_tokens=length,
            sampling=Sampling(**sampling),
            end_ids=self._loaded.end_ids,
            stops=(until,) if isinstance(until, str) else tuple(until),
            seed=0,
            index=index,
        )

    @cached_property
    def _format(self) -> ChatFormat:
        return chat_format(self._loaded)

    def _text(self, ids: Sequence[int]) -> str:
        """Return ids as text, special tokens by their names."""
        names = {id_: name for name, id_ in self._specials.items()}
        text, plain = "", list[int]()
        for id_ in ids:
            if id_ not in names:
                plain.append(id_)
                continue
            text += self._loaded.tokenizer.decode(plain) + names[id_]
            plain = []
        return text + self._loaded.tokenizer.decode(plain)
