"""The text side of a model for evaluation harnesses: strings with special tokens, conversations as text, writing."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, final

from lmtrain.inference.chat_format import ChatFormat, chat_format
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling_settings import Sampling


@final
class HarnessTexts:
    """Strings as transformers reads them: a special token's name in a text is that token.

    Texts of a harness come from its own data; a conversation with a stranger goes through `chat_format` alone.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._specials = loaded.tokenizer.special_tokens
        self._names = {id_: name for name, id_ in self._specials.items()}
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self.name = loaded.name
        self.first_id, self.end_id = loaded.first_id, loaded.tokenizer.end_of_text_id

    @cached_property
    def _format(self) -> ChatFormat:
        return chat_format(self._loaded)

    def encode(self, text: str, *, begins: bool) -> list[int]:
        """Return a text's ids; `begins` puts before it the ids that its tokenizer in transformers does."""
        pieces = [piece for piece in self._cut.split(text) if piece]
        ids = list[int]() if not begins or self._begins(pieces) else [*self._loaded.added_ids]
        for piece in pieces:
            ids += [self._specials[piece]] if piece in self._specials else self._loaded.tokenizer.encode(piece)
        return ids

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return a conversation as text up to the start of the answer."""
        return self._text(self._format.prompt(messages))

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        num_new_tokens: int,
        stops: Sequence[str],
        sampling: Mapping[str, Any],
    ) -> list[str]:
        """Return the text written after each prompt; raises ConfigurationError for a sampling out of bounds."""
        requests = [
            Request(
                prompt=prompt or [self.first_id],
                num_new_tokens=num_new_tokens,
                sampling=Sampling(**sampling),
                end_ids=self._loaded.end_ids,
                stops=tuple(stops),
                seed=0,
                index=index,
            )
            for index, prompt in enumerate(prompts)
        ]
        return [each.text for each in self._loaded.engine().write(requests)]

    def _begins(self, pieces: Sequence[str]) -> bool:
        return bool(pieces) and self._specials.get(pieces[0]) == self.first_id

    def _text(self, ids: Sequence[int]) -> str:
        """Return ids as text, special tokens by their names."""
        text, plain = "", list[int]()
        for id_ in ids:
            if id_ not in self._names:
                plain.append(id_)
                continue
            text += self._loaded.tokenizer.decode(plain) + self._names[id_]
            plain = []
        return text + self._loaded.tokenizer.decode(plain)
