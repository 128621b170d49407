"""Read only the model's weights, or their average, out of a checkpoint, of one file or sharded, on one process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from lmtrain.adapters.lora import Lora
from lmtrain.adapters.low_rank import is_of_adapter, merge
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.shard_reading import read_metadata, read_shards
from lmtrain.storage.checkpoint_layout import SHARDED, STATE
from lmtrain.storage.hashed_folder import require_whole
from lmtrain.storage.plain_values import load_state

Kind = Literal["raw", "ema"]
PREFIX: Final = "language_model."  # the model's name inside the training module
AVERAGE_PREFIX: Final = "weight_average."


def load_weights(
    model: LanguageModel, checkpoint: Path, kind: Kind = "raw", *, adapter: Lora | None = None
) -> LanguageModel:
    """Fill a materialised model from a checkpoint's folder: with the weights, or with their moving average.

    The changes of a run's `adapter` are added to the weights.

    Raises:
        ConfigurationError: The run kept no average.
        EnvironmentProblem: The checkpoint is damaged, or names code to run.
    """
    if adapter is not None:
        load_adapted(model, checkpoint, kind, adapter=adapter)
        return merge(model)
    _load(model, checkpoint, kind)
    return model


def load_adapted(model: LanguageModel, checkpoint: Path, kind: Kind = "raw", *, adapter: Lora) -> LanguageModel:
    """Fill a materialised model and its adapters, apart, from a checkpoint's folder."""
    adapter.attach(model, seed=0)  # every value is read next
    _load(model, checkpoint, kind)
    return model


def _load(model: LanguageModel, checkpoint: Path, kind: Kind) -> None:
    require_whole(checkpoint)
    model.load_state_dict(_read(checkpoint, PREFIX, model.state_dict()))
    if kind == "ema":
        weights = dict(model.named_parameters())
        averages = _read(checkpoint, AVERAGE_PREFIX, weights)
        if averages.keys() != weights.keys():
            raise _no_average(checkpoint)
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(averages[name])


def weight_shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of the model in a checkpoint's folder, without reading any.

    Adapters are none of the model's.
    """
    return {name: shape for name, shape in tensor_shapes(checkpoint).items() if not is_of_adapter(name)}


def tensor_shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the model and its adapters in a checkpoint's folder, without reading any."""
    if (checkpoint / STATE).is_file():
        return {name: tuple(value.shape) for name, value in _read(checkpoint, PREFIX, {}).items()}  # only mapped
    start = f"state_dict.{PREFIX}"
    known = read_metadata(checkpoint / SHARDED).state_dict_metadata
    ours = {name.removeprefix(start): one for name, one in known.items() if name.startswith(start)}
    if strange := [name for name, one in ours.items() if not isinstance(one, TensorStorageMetadata)]:
        raise EnvironmentProblem(f"{checkpoint}: {strange[0]} is not a tensor there; use another checkpoint.")
    return {name: tuple(one.size) for name, one in ours.items() if isinstance(one, TensorStorageMetadata)}


def _read(checkpoint: Path, prefix: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's values under a prefix, named without it; a sharded one is asked for the names in `like`."""
    if (checkpoint / STATE).is_file():
        state: dict[str, Any] = load_state(checkpoint / STATE, map_location="cpu", mmap=True)
        saved: dict[str, Tensor] = state["state_dict"]
        return {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}
    read = {prefix + name: torch.empty_like(value) for name, value in like.items()}
    try:
        read_shards({"state_dict": read}, checkpoint / SHARDED, alone=True)
    except CheckpointException as failure:
        if prefix == AVERAGE_PREFIX and "Missing key" in str(failure):
            raise _no_average(checkpoint) from failure
        raise
    return {name.removeprefix(prefix): value for name, value in read.items()}


def _no_average(checkpoint: Path) -> ConfigurationError:
    return ConfigurationError(
        f"--weights ema: {checkpoint} holds no average of the weights; train with weight_average=ema, or leave "
        "--weights out."
    )
