"""An unfinished build's files next to its shards, for the next one to continue from: the folder `.work`.

Encoded blocks lie in files of their own until their ids are in a shard for good. `commit.json` holds the number of the
first block that is not; shards grown further are cut back to that. `end.json` says that the source has been read to its
end.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from lmtrain.data.manifest import TOKENIZER_FOLDER, Shard
from lmtrain.data.shard_writer import Written
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import fsync_all, rename_durably, write_durably
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.loading import load_tokenizer

WORK = ".work"
IDENTITY, COMMIT, END, DONE = "identity.json", "commit.json", "end.json", ".done"


@dataclass(frozen=True)
class Commit:
    """Everything up to a block is in the shards; `chain` is the digest of all text so far."""

    next_block: int
    chain: str
    written: Mapping[str, Written]
    text_bytes: Mapping[str, int]


@dataclass(frozen=True)
class End:
    """The source's end, or the budget's: the number of blocks, the drops up to there, and the first of each reason."""

    num_blocks: int
    dropped: Mapping[str, int]
    first: Mapping[str, str] = field(default_factory=dict[str, str])


@final
class WorkFolder:
    """The hidden part of a folder under construction."""

    def __init__(self, folder: Path) -> None:
        """Look into an existing folder."""
        self.folder = folder
        self._work = folder / WORK
        self._tokenizer: Tokenizer | None = None
        self.scratch = self._work / "stages"

    def begin(self, identity: str) -> bool:
        """Make room for a build of this identity; an earlier one's files stay only if it was of the same.

        True: there is work to go on from.
        """
        if self._read(IDENTITY) == identity:
            for path in (self._work / "blocks").iterdir():
                if path.name.startswith(".") or path.suffix:  # half written, or text to be read again
                    path.unlink(missing_ok=True)  # a killed build's worker may be at its last block
            return True
        self.clear()
        (self._work / "blocks").mkdir(parents=True)
        self._write(IDENTITY, identity)
        return False

    def clear(self) -> None:
        """Start again."""
        self._tokenizer = None
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def is_done(self) -> bool:
        """Return whether the folder is whole and its work was being cleared away."""
        return not (self._work / IDENTITY).is_file() and (self.folder / DONE).is_dir()

    def finish(self) -> None:
        """Clear the work away: in one step first, so a half-cleared one is never taken for work to continue."""
        if self._work.is_dir():
            self._work.rename(self.folder / DONE)
        shutil.rmtree(self.folder / DONE)

    def block(self, number: int) -> Path:
        """Return where an encoded block is kept."""
        return self._work / "blocks" / f"{number:08d}"

    def raw(self, number: int, owner: str = "held") -> Path:
        """Return where a block's text waits for its owner; no build touches the text of another's workers."""
        return self._work / "blocks" / f"{number:08d}.{owner}.text"

    def save_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Write the data set's tokenizer, whole or not at all."""
        aside = self._work / TOKENIZER_FOLDER
        shutil.rmtree(aside, ignore_errors=True)
        tokenizer.save(aside)
        fsync_all(aside)
        rename_durably(aside, self.folder / TOKENIZER_FOLDER)
        self._tokenizer = tokenizer

    def tokenizer(self) -> Tokenizer:
        """Return the data set's tokenizer, read once."""
        self._tokenizer = self._tokenizer or load_tokenizer(self.folder / TOKENIZER_FOLDER)
        return self._tokenizer

    def forget_blocks(self, start: int, stop: int) -> None:
        """Delete the encoded blocks, in the shards for good."""
        for number in range(start, stop):
            self.block(number).unlink(missing_ok=True)

    def read_commit(self) -> Commit | None:
        """Return the last commit of the shards, or None without one."""
        content = self._read(COMMIT)
        if content is None:
            return None
        written = {split: _written(state) for split, state in content["written"].items()}
        return Commit(content["next_block"], content["chain"], written, content["text_bytes"])

    def write_commit(self, commit: Commit) -> None:
        """Record, once shards are on the disk, their content for good."""
        written = {
            split: {
                "closed": [shard.to_json() for shard in state.closed],
                "opened": None if state.opened is None else state.opened.to_json(),
            }
            for split, state in commit.written.items()
        }
        self._write(COMMIT, {**asdict(commit), "written": written})

    def read_end(self) -> End | None:
        """Return how the stream ended, or None when it has not."""
        content = self._read(END)
        return None if content is None else End(**content)

    def write_end(self, end: End) -> None:
        """Record the stream's end."""
        self._write(END, asdict(end))

    def forget_end(self) -> None:
        """Read the source again."""
        (self._work / END).unlink(missing_ok=True)

    def _read(self, name: str) -> Any:
        try:
            return foreign_json.read(self._work / name)
        except (OSError, ValueError):
            return None

    def _write(self, name: str, content: Any) -> None:
        write_durably(self._work / name, json.dumps(content).encode())


def _written(state: Mapping[str, Any]) -> Written:
    opened = state["opened"]
    return Written(tuple(Shard(**shard) for shard in state["closed"]), None if opened is None else Shard(**opened))
