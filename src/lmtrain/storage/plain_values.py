"""Read torch's files of tensors and plain values, and refuse those with anything else.

`torch.save` writes pickles, and a pickle can name any function to call.
"""

import re
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from lmtrain.errors import EnvironmentProblem


def load_plain(path: Path, **options: Any) -> Any:
    """Return the content of a file of `torch.save`; the options are those of `torch.load`.

    Raises:
        EnvironmentProblem: The file names something else than tensors and plain values, such as code to run.
    """
    try:
        return torch.load(path, weights_only=True, **options)
    except UnpicklingError as problem:
        raise not_plain(path, problem) from problem


def not_plain(path: Path, problem: UnpicklingError) -> EnvironmentProblem:
    """Name the file or folder with more than tensors and plain values, and the name refused by torch."""
    named = re.search(r"(?:it names|GLOBAL) (\S+)", str(problem))
    found = f"names {named[1]}" if named else "cannot be unpickled"
    rule = "holds more than tensors and plain values"
    return EnvironmentProblem(f"{path} {rule}: it {found}; use a checkpoint from a source that you trust.")
