"""The weights that `init_from` names: of an imported folder, or of a run's checkpoint."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from lmtrain.composition.checkpoint_source import find_source
from lmtrain.interop.imported import fill_from, open_weights, require_fit
from lmtrain.models.base import LanguageModel
from lmtrain.storage.hashed_folder import MANIFEST, file_sha256, require_whole
from lmtrain.training.transforms import ModelTransform, unchanged
from lmtrain.training.weights import load_weights

KEY = "init_from"


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
