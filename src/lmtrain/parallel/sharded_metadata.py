"""Look into a sharded checkpoint's `.metadata`, which torch writes as a pickle, before torch itself reads it.

A pickle can name any function to call; this reads with a list of the few that torch's own metadata needs, so that a
checkpoint from elsewhere can be refused without running a line of it.
"""

import pickle
from pathlib import Path
from typing import Any, Final

import torch

from lmtrain.errors import EnvironmentProblem

METADATA: Final = ".metadata"
CHECKPOINT_MODULES: Final = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
PLAIN: Final = {
    ("builtins", "dict"),
    ("builtins", "set"),
    ("collections", "OrderedDict"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}


def require_safe_metadata(sharded: Path) -> None:
    """Read the metadata with nothing but the names on the list.

    Raises:
        EnvironmentProblem: It names something else, or is no pickle.
    """
    path = sharded / METADATA
    try:
        with path.open("rb") as file:
            _NamesOnTheList(file).load()
    except (pickle.UnpicklingError, EOFError, OSError, ValueError, TypeError) as problem:
        raise EnvironmentProblem(f"{path} cannot be read safely: {problem}; use another checkpoint.") from problem


class _NamesOnTheList(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        is_dtype = module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype | torch.layout)
        if module_name in CHECKPOINT_MODULES or (module_name, global_name) in PLAIN or is_dtype:
            found = super().find_class(module_name, global_name)
            if is_dtype or isinstance(found, type) or (module_name, global_name) in PLAIN:
                return found
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, which no checkpoint of ours does")
