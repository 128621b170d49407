"""Single-file checkpoints for Lightning: whole or absent when written, verified when read.

A checkpoint is a folder `step_00000200/` with `manifest.json` next to `state.pt` (here) or `sharded/` (FSDP); every
strategy reads both.
Lightning's own writer swallows a permission error, so that a fit "succeeds" without a checkpoint (2.6.6).
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from typing_extensions import override

from lmtrain.parallel.shard_reading import read_whole
from lmtrain.storage.checkpoint_layout import SHARDED, STATE
from lmtrain.storage.hashed_folder import require_whole
from lmtrain.storage.plain_values import load_state
from lmtrain.training.checkpointing.checkpoints import FACTS, WriteState

__all__ = ["FACTS", "STATE", "AtomicCheckpointIO"]


class AtomicCheckpointIO(CheckpointIO):
    """Save and load one file a checkpoint; `path` is always the checkpoint's folder."""

    @override
    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: Any,
        storage_options: Callable[[Callable[[], int]], object] | None = None,
    ) -> None:
        """Write a checkpoint atomically, or by `storage_options`."""
        write = WriteState(checkpoint, Path(path))
        if storage_options is None:
            write()
        else:
            storage_options(write)

    @override
    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint of either layout, its bytes checked by its manifest; nothing in it can run code."""
        del weights_only
        require_whole(Path(path))
        if (Path(path) / SHARDED).is_dir():
            return read_whole(Path(path) / SHARDED)
        return load_state(Path(path) / STATE, map_location=map_location or "cpu")

    @override
    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint folder."""
        shutil.rmtree(path)
