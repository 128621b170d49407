"""Tokens to text as they come: whole characters only, and nothing of a stop string, wherever tokens cut it."""

import codecs
from collections.abc import Sequence
from typing import final

from lmtrain.tokenizers.chat_styles import CallWords


@final
class TextStream:
    """One text as it is written; the begin of a character or of a stop string is held back.

    `pieces` are the bytes of every token, as `Tokenizer.bytes_of_ids` returns them.
    """

    def __init__(self, pieces: Sequence[bytes], *, stops: Sequence[str] = ()) -> None:
        self._pieces, self._stops = pieces, tuple(filter(None, stops))
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.is_stopped = False

    def add(self, token: int) -> str:
        """Return the text made certain by a token; nothing after a stop string."""
        piece = self._pieces[token] if token < len(self._pieces) else b""
        return self._certain(self._decoder.decode(piece))

    def finish(self) -> str:
        """Return the rest: half a character is U+FFFD."""
        text = self._certain(self._decoder.decode(b"", final=True)) + ("" if self.is_stopped else self._held)
        self._held = ""
        return text

    def _certain(self, more: str) -> str:
        if self.is_stopped:
            return ""
        text = self._held + more
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped, self._held = True, ""
            return text[: min(found)]
        begun = max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - begun :]
        return text[: len(text) - begun]


@final
class HeldCall:
    """Words of one turn after another, held back from the begin of a call among them; None: calls are not in words."""

    def __init__(self, words: CallWords | None) -> None:
        self._words, self._held, self._is_first = words, "", True

    def add(self, text: str) -> str:
        """Return the words outside any call."""
        if self._words is None:
            return text
        text = self._held + text
        start = self._start(text, self._words)
        self._held = text[start:]
        self._is_first = self._is_first and start == 0
        return text[:start]

    def _start(self, text: str, words: CallWords) -> int:
        """Return the first character to be held back."""
        if words.end is None:
            said = text.lstrip()
            may_be_call = said.startswith(words.begin) or words.begin.startswith(said)
            return 0 if self._is_first and may_be_call else len(text)
        found = text.find(words.begin)
        return found if found >= 0 else len(text) - _begun(text, words.begin)

    def release(self) -> str:
        """Return the words held back: no call after all."""
        held, self._held = self._held, ""
        return held

    def drop(self) -> None:
        """Forget an answered call's words; another turn begins."""
        self._held, self._is_first = "", True


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the text's end begin a stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
