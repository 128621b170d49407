"""The weights that `init_from` names: of an imported folder, or of a run's checkpoint."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from lmtrain.composition.checkpoint_source import find_source, model_settings
from lmtrain.interop.imported import fill_from, open_weights, require_fit
from lmtrain.models.base import LanguageModel
from lmtrain.storage.hashed_folder import MANIFEST, file_sha256, require_whole
from lmtrain.training.checkpoints import NOT_SET
from lmtrain.training.transforms import ModelTransform, unchanged
from lmtrain.training.weights import load_weights

KEY: Final = "init_from"
FREE_SETTINGS: Final = ("attention",)  # of a model: how it computes, not what


def find_weights(init_from: str | None, model: LanguageModel) -> ModelTransform:
    """Return what fills a model with the weights of `init_from`, or leaves it as it is.

    Raises:
        ConfigurationError: `init_from` names no weights, or those of another model: before anything is allocated.
        EnvironmentProblem: They are damaged.
    """
    if init_from is None:
        return unchanged
    source = find_source(Path(init_from), key=KEY)
    if not isinstance(source, Path):
        return _filled(partial(load_weights, checkpoint=source.checkpoint.path))
    require_whole(source)
    files = open_weights(source)
    require_fit(model, files)
    return _filled(partial(fill_from, files=files))


def difference_line(init_from: str | None, model_node: Mapping[str, Any]) -> str | None:
    """Return what a model is not told alike in the run that `init_from` names, or None.

    Weights fit by their names and shapes. Heads of another number, other rotations or another activation fit too, and
    are another model all the same: sometimes on purpose, as for a longer context.
    """
    source = None if init_from is None else find_source(Path(init_from), key=KEY)
    if source is None or isinstance(source, Path):
        return None
    there = model_settings(source)
    differing = [
        f"model.{name}={model_node.get(name, NOT_SET)}, there {there.get(name, NOT_SET)}"
        for name in sorted({*there, *model_node} - {*FREE_SETTINGS})
        if there.get(name) != model_node.get(name)
    ]
    if not differing:
        return None
    return f"The weights of {KEY}={init_from} were trained in a model that differs: {'; '.join(differing)}."


def fingerprint_of(init_from: str | None) -> str | None:
    """Return the sha256 of what `init_from` holds, wherever it lies."""
    if init_from is None:
        return None
    source = find_source(Path(init_from), key=KEY)
    folder = source if isinstance(source, Path) else source.checkpoint.path
    return file_sha256(folder / MANIFEST)


def _filled(fill: Callable[[LanguageModel], object]) -> ModelTransform:
    def transform(model: LanguageModel) -> LanguageModel:
        fill(model)
        return model

    return transform
