"""The blocks of a cache's memory: their texts, and the prefixes shared between texts.

Pages as in vLLM (arXiv 2309.06180). A block holds so many consecutive tokens of a text; full ones are found again by
the tokens from the text's start to their end. No tensor is touched here.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

ROOT = 0  # the serial before a text's first block


@dataclass
class _Prefix:
    """A full block's place in the tree of prefixes: the block before it, and its tokens."""

    parent: int
    tokens: tuple[int, ...]
    serial: int


@final
@dataclass
class BlockTable:
    """One text's blocks in order, the first `num_given_back` no longer its own.

    `num_shared` full ones are known as a prefix; `last_serial` names the last of them.
    """

    blocks: list[int] = field(default_factory=list[int])
    num_shared: int = 0
    last_serial: int = ROOT
    num_given_back: int = 0


@final
class BlockPool:
    """Blocks 0 to `num_blocks`, each used by texts or kept for its prefix until its room is needed, oldest first."""

    def __init__(self, num_blocks: int, *, block_tokens: int) -> None:
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self.num_touched = 0  # all blocks ever used are below
        self._free: list[int] = []
        self._num_users: dict[int, int] = {}
        self._prefixes: dict[int, _Prefix] = {}
        self._found_by: dict[tuple[int, tuple[int, ...]], int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._num_serials = ROOT

    @property
    def num_used(self) -> int:
        """Return how many blocks belong to a text."""
        return len(self._num_users)

    @property
    def num_kept(self) -> int:
        """Return how many blocks belong to none, and are kept for their prefix."""
        return len(self._idle)

    def open(self, tokens: Sequence[int]) -> BlockTable:
        """Return the table of a text with the full blocks of its longest known prefix, but for its last token."""
        table = BlockTable()
        for end in range(self.block_tokens, len(tokens), self.block_tokens):
            block = self._found_by.get((table.last_serial, tuple(tokens[end - self.block_tokens : end])))
            if block is None:
                break
            self._num_users[block] = self._num_users.get(block, 0) + 1
            self._idle.pop(block, None)
            table.blocks.append(block)
            table.last_serial = self._prefixes[block].serial
        table.num_shared = len(table.blocks)
        return table

    def extend(self, table: BlockTable, num_tokens: int) -> None:
        """Give a text the blocks for so many tokens in all; the caller has checked for enough free ones."""
        while len(table.blocks) * self.block_tokens < num_tokens:
            block = self._take()
            self._num_users[block] = 1
            table.blocks.append(block)

    def publish(self, table: BlockTable, tokens: Sequence[int]) -> None:
        """Let other texts find the blocks filled by `tokens`, all of them cached; the same prefix is kept once."""
        while (end := (table.num_shared + 1) * self.block_tokens) <= len(tokens):
            block, piece = table.blocks[table.num_shared], tuple(tokens[end - self.block_tokens : end])
            key = (table.last_serial, piece)
            known = self._found_by.setdefault(key, block)
            if known == block:
                self._num_serials += 1
                self._prefixes[block] = _Prefix(*key, serial=self._num_serials)
            table.last_serial = self._prefixes[known].serial
            table.num_shared += 1

    def give_back(self, table: BlockTable, num_blocks: int) -> None:
        """Give back a text's first blocks, so many in all, out of sight of its later tokens."""
        self._leave(table.blocks[table.num_given_back : num_blocks])
        table.num_given_back = max(table.num_given_back, num_blocks)

    def close(self, table: BlockTable) -> None:
        """Give back a text's blocks: the last first, for a prefix to outlive its continuation."""
        self._leave(table.blocks[table.num_given_back :][::-1])
        table.blocks, table.num_shared, table.last_serial, table.num_given_back = [], 0, ROOT, 0

    def _leave(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._num_users[block] -= 1
            if self._num_users[block] == 0:
                del self._num_users[block]
                if block in self._prefixes:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        if self.num_touched < self.num_blocks:
            self.num_touched += 1
            return self.num_touched - 1
        assert self._idle, "more blocks were asked for than were reserved"
        block, _ = self._idle.popitem(last=False)
        prefix = self._prefixes.pop(block)
        del self._found_by[prefix.parent, prefix.tokens]
        return block
