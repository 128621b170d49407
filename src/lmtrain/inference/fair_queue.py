"""Who is next: clients take turns, and each client's requests keep their order."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import final

from lmtrain.inference.generation import Generation


@final
class FairQueue:
    """Waiting texts by client; a served client goes to the end, so many requests of one hold up no other."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Generation]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Generation]:
        """Go through the texts in the order of turns, one of each client first."""
        lines = [list(line) for line in self._waiting.values()]
        for turn in range(max(map(len, lines), default=0)):
            yield from (line[turn] for line in lines if turn < len(line))

    def add(self, generation: Generation) -> None:
        """Put a text at the end of its client's line."""
        self._waiting.setdefault(generation.request.client, deque()).append(generation)

    def take(self, generation: Generation) -> None:
        """Take a text out; its client's next turn comes after everyone else's."""
        client = generation.request.client
        self._waiting[client].remove(generation)
        self._waiting.move_to_end(client)
        if not self._waiting[client]:
            del self._waiting[client]
