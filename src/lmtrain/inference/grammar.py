"""Grammars that a text must follow: JSON of a schema, or the call of a tool, by the package llguidance.

https://github.com/guidance-ai/llguidance. V vocabulary.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lmtrain.errors import DataError
from lmtrain.missing_package import require_package
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat import CallWords

Schema = Mapping[str, Any]
ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}
# As json.dumps writes, and with it every call in training; free white space lets a small model write nothing else.
SPACES: Final[Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@final
class Grammar:
    """A grammar for the tokens of a model and how far a text has followed it, as llguidance's matcher."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def begin(self) -> "Grammar":
        """Return the grammar for another text."""
        return Grammar(self._matcher.deep_copy())

    @property
    def is_complete(self) -> bool:
        """Return whether nothing can follow."""
        return self._matcher.is_stopped()

    def add(self, token: int) -> None:
        """Go on by a token."""
        self._matcher.consume_token(token)

    def allowed(self, logits: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
        """Return logits with those of forbidden tokens at minus infinity."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        is_allowed = np.zeros(len(logits), dtype=bool)
        known = np.unpackbits(bits, bitorder="little")[: len(logits)].astype(bool)
        is_allowed[: len(known)] = known
        return logits.masked_fill(~torch.from_numpy(is_allowed).to(logits.device), -math.inf)


@final
class Grammars:
    """The grammars of a model's tokens; `end_ids` end a text."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        require_package("response_format", "llguidance", extra="serve")
        from llguidance import LLTokenizer, TokenizerWrapper

        vocabulary = _Vocabulary(tokenizer)
        ends = sorted({*end_ids, tokenizer.end_of_text_id})
        self._tokens = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=ends)

    def of_schema(self, schema: Schema, *, key: str) -> Grammar:
        """Return the grammar of JSON that a schema describes; `key` is the schema's place in a request."""
        from llguidance import LLMatcher

        try:
            text = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=SPACES)
        except ValueError as problem:
            raise DataError(f"{key}: {problem}.") from problem
        return self._checked(text, key)

    def of_call(self, functions: Sequence[Mapping[str, Any]], words: CallWords, *, key: str) -> Grammar:
        """Return the grammar of one call of one of some functions, in a chat style's form; raises as `of_schema`."""
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": function["name"]},
                    words.arguments_key: function.get("parameters") or ANY_OBJECT,
                },
                "required": ["name", words.arguments_key],
                "additionalProperties": False,
            }
            for function in functions
        ]
        ids = {name.decode(): f"<[{id_}]>" for id_, name in words.tokens.items()}
        begin, end = (ids.get(word, json.dumps(word)) for word in (words.begin, words.end or ""))
        schema = json.dumps({"anyOf": calls, "x-guidance": SPACES})
        start = f"{begin} LINE? call LINE? {end}" if words.end else "call"
        lark = f'start: {start}\nLINE: "\\n"\ncall: %json {schema}\n'
        return self._checked(lark, key)

    def _checked(self, text: str, key: str) -> Grammar:
        from llguidance import LLMatcher

        if problem := LLMatcher.validate_grammar(text, self._tokens):
            raise DataError(f"{key}: {problem.splitlines()[0][:300]}.")
        return Grammar(LLMatcher(self._tokens, text, log_level=0))


@final
class _Vocabulary:
    """A tokenizer as llguidance reads one."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        names = {id_: name for name, id_ in tokenizer.special_tokens.items()}
        pieces = tokenizer.bytes_of_ids()
        marked = (b"\xff" + names.get(id_, f"[{id_}]").encode() for id_ in range(len(pieces)))  # 0xff begins a special
        self.tokens = [
            mark if id_ in names or not piece else piece
            for id_, (piece, mark) in enumerate(zip(pieces, marked, strict=True))
        ]
        self.eos_token_id, self.special_token_ids = tokenizer.end_of_text_id, list(names)
        self._encode: Callable[[str], list[int]] = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)
