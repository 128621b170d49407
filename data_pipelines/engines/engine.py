"""The interface of engines: send a source's documents through the stages, on some machines or others."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from data_pipelines.sources.base import Source
from data_pipelines.stages.stage import Item, Stage


@runtime_checkable
class Engine(Protocol):
    """Where stages run; the items do not depend on it."""

    def __call__(self, source: Source, stages: Sequence[Stage], /, *, folder: Path) -> Iterator[Item]:
        """Yield the source's items in order, each document through all stages or dropped with a reason.

        `folder` holds work not to be done twice; it need not exist, and is made when it is needed.
        """
        ...
