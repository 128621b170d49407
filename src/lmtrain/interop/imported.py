"""The folder of an import: weights under our names, settings, and the tokenizer, ready to be trained on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmtrain.errors import ConfigurationError
from lmtrain.interop.imported_folder import FACTS, WEIGHTS
from lmtrain.interop.safetensors_files import WeightFiles
from lmtrain.storage import foreign_json
from lmtrain.storage.hashed_folder import require_whole


def read_facts(folder: Path) -> dict[str, Any]:
    """Return an import's notes: the settings of the model, and its origin.

    Raises:
        EnvironmentProblem: The folder is not as it was written.
    """
    require_whole(folder)
    return foreign_json.read(folder / FACTS)


def open_weights(folder: Path) -> WeightFiles:
    """Return the weights of an imported folder, to be read one by one."""
    return WeightFiles(folder / WEIGHTS)


def require_fit(model: nn.Module, files: WeightFiles) -> None:
    """Refuse weights of another model, by the headers of their files alone.

    Raises:
        ConfigurationError: A name or a shape differs.
    """
    found = {name: facts.shape for name, facts in files.facts.items()}
    source = files.folder.parent
    require_shapes(model, found, source=source, fix=f"Give init_from={source} alone: it brings its own model.")


def require_shapes(model: nn.Module, found: Mapping[str, tuple[int, ...]], *, source: Path | str, fix: str) -> None:
    """Refuse weights of other names or shapes than a model's; `source` is the value of init_from.

    Raises:
        ConfigurationError: A name or a shape differs.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    differing = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if differing:
        name = differing[0]
        raise ConfigurationError(
            f"init_from={source} is another model: {name} is {_told(found.get(name))} there and "
            f"{_told(wanted.get(name))} here (differing tensors: {len(differing)}). {fix}"
        )


def fill_from(model: nn.Module, files: WeightFiles) -> None:
    """Copy every weight of an imported folder into a model, in the model's dtype."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(files.read(name))


def _told(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"{list(shape)}"
