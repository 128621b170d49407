"""Read only the model's weights out of a checkpoint, of one file or sharded, on one process."""

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as sharded_checkpoint

from lmtrain.models.base import LanguageModel
from lmtrain.parallel.fsdp import SHARDED
from lmtrain.parallel.sharded_metadata import require_safe_metadata
from lmtrain.storage.hashed_folder import require_whole
from lmtrain.training.checkpoint_io import STATE

PREFIX = "language_model."  # the model's name inside the training module


def load_weights(model: LanguageModel, checkpoint: Path) -> None:
    """Fill a materialised model from a checkpoint's folder.

    Raises:
        EnvironmentProblem: The checkpoint is damaged.
    """
    require_whole(checkpoint)
    if (checkpoint / STATE).is_file():
        state: dict[str, Any] = torch.load(checkpoint / STATE, map_location="cpu", weights_only=True, mmap=True)
        weights = state["state_dict"]
    else:
        weights = {PREFIX + name: torch.empty_like(value) for name, value in model.state_dict().items()}
        require_safe_metadata(checkpoint / SHARDED)
        with warnings.catch_warnings():  # torch warns of what no_dist asks for (2.13)
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            sharded_checkpoint.load({"state_dict": weights}, checkpoint_id=checkpoint / SHARDED, no_dist=True)
    model.load_state_dict({name.removeprefix(PREFIX): value for name, value in weights.items()})
