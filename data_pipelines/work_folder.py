"""An unfinished build's files next to its shards, for the next one to continue from: the folder `.work`.

Blocks of text wait there for a worker, and encoded blocks until the shards are whole.
"""

import json
import shutil
from pathlib import Path
from typing import final

from lmtrain.data.manifest import TOKENIZER_FOLDER
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import clear_asides, fsync_all, rename_durably, write_durably
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.loading import load_tokenizer

WORK = ".work"


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
        """Make room for a build of this identity; an earlier one's work stays only if it was of the same.

        True: there is work to continue.
        """
        try:
            is_same = foreign_json.read(self._work / "identity.json") == identity
        except (OSError, ValueError):
            is_same = False
        kept = {WORK, TOKENIZER_FOLDER} if is_same else set[str]()
        for path in self.folder.iterdir():
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if is_same:
            clear_asides(self._work)
        else:
            (self._work / "blocks").mkdir(parents=True)
            write_durably(self._work / "identity.json", json.dumps(identity).encode())
        return is_same

    def finish(self) -> None:
        """Clear the work away."""
        shutil.rmtree(self._work)

    def text(self, number: int) -> Path:
        """Return where a block's text waits to be encoded."""
        return self._work / "blocks" / f"{number:08d}.text"

    def encoded(self, number: int) -> Path:
        """Return where an encoded block is kept."""
        return self._work / "blocks" / f"{number:08d}"

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
