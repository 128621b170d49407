"""Make texts uniform and drop what is no document, counting every drop by its reason."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import final

from data_pipelines.sources.base import Document, Skipped

_LINE_ENDS = re.compile("\r\n?|[\x85\u2028\u2029]")


@final
class Cleaning:
    """One pass over documents; `dropped` counts what it left out."""

    def __init__(self, *, min_document_characters: int) -> None:
        """Keep texts of at least so many characters, besides white space at their ends."""
        self._min_document_characters = min_document_characters
        self._seen: set[bytes] = set()
        self.dropped: Counter[str] = Counter()

    def __call__(self, documents: Iterable[Document | Skipped]) -> Iterator[Document]:
        """Yield the documents that stay, each with one kind of line end and no half characters."""
        for document in documents:
            reason, text = self._look_at(document)
            if reason:
                self.dropped[reason] += 1
            else:
                yield Document(document.id, text)

    def _look_at(self, document: Document | Skipped) -> tuple[str, str]:
        if isinstance(document, Skipped):
            return document.reason, ""
        text = uniform(document.text)
        num_characters = len(text.strip())
        if num_characters == 0:
            return "empty", ""
        if num_characters < self._min_document_characters:
            return "too short", ""
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if digest in self._seen:
            return "exact duplicate", ""
        self._seen.add(digest)
        return "", text


def uniform(text: str) -> str:
    """Return the text with every line end as a newline, and lone surrogates, which UTF-8 cannot hold, as U+FFFD."""
    text = _LINE_ENDS.sub("\n", text)
    if text.isascii():
        return text
    return text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")
