"""The state of a run in one file, `state.pt`, in a folder with a manifest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from lmtrain.storage.checkpoint_layout import STATE
from lmtrain.storage.hashed_folder import write_atomically

FACTS: Final = "lmtrain"


@dataclass(frozen=True)
class WriteState:
    """Write a checkpoint atomically; its `lmtrain` entry becomes the manifest's facts."""

    checkpoint: dict[str, Any]
    path: Path

    def __call__(self) -> int:
        """Write it, and return its bytes."""
        write_atomically(
            self.path,
            facts=self.checkpoint.get(FACTS, {}),
            write=lambda folder: torch.save(self.checkpoint, folder / STATE),
        )
        return (self.path / STATE).stat().st_size
