"""A source's documents through the stages and the split, as blocks; drops are counted here alone.

Documents count by the reason they went for; of the remaining ones, the characters removed by cleaning.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from data_pipelines.engines.engine import Engine
from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.stages.split import HeldOut
from data_pipelines.stages.split_rules import split_by_rule
from data_pipelines.stages.spool import Block, cut_into_blocks
from data_pipelines.stages.stage import Stage

REMOVED = "control characters"


@final
@dataclass(frozen=True)
class SourcePass:
    """One pass over a source; `dropped` counts the drops so far by reason, `first` names the first of each."""

    source: Source
    stages: Sequence[Stage]
    engine: Engine
    held_out: HeldOut
    scratch: Path
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    first: dict[str, str] = field(default_factory=dict[str, str])

    def blocks(self) -> Iterator[Block]:
        """Yield the remaining documents, in the source's order."""
        uncounted = replace(self, dropped={}, first={})
        return cut_into_blocks(split_by_rule(self.kept, uncounted.kept, held_out=self.held_out))

    def kept(self) -> Iterator[Document]:
        """Yield the documents left by the stages, and count the others."""
        left_out = Counter[str]()
        for item in self.engine(self.source, self.stages, folder=self.scratch):
            if isinstance(item, Skipped):
                self._count(left_out, item.reason, 1, item.id)
                continue
            if item.num_removed:
                self._count(left_out, REMOVED, item.num_removed, item.id)
            if left_out:  # with the document, for what reads ahead does not count ahead
                item, left_out = replace(item, left_out=left_out), Counter[str]()
            yield item

    def notes(self, dropped: Mapping[str, int]) -> list[str]:
        """Return the dropped documents, and the characters removed from the others, an entry a reason."""
        return [self._note(reason, count) for reason, count in sorted(dropped.items())]

    def _note(self, reason: str, count: int) -> str:
        verb = "removed" if reason == REMOVED else "dropped"
        return f"{count:,} {verb} ({reason}{self._first_of(reason)})"

    def _first_of(self, reason: str) -> str:
        return f", first: {self.first[reason]}" if reason in self.first else ""

    def _count(self, left_out: Counter[str], reason: str, number: int, first: str) -> None:
        left_out[reason] += number
        self.dropped[reason] = self.dropped.get(reason, 0) + number
        self.first.setdefault(reason, first)
