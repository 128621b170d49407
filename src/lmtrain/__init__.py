"""Train language models with every FLOP accounted for.

import lmtrain

run = lmtrain.train("model=llama_tiny", budget="2M")
print(run.metrics["validation/bits_per_byte"])
print(lmtrain.load(run.folder).generate("def main", num_new_tokens=40))

Everything is imported on first use: `import lmtrain` alone loads neither torch nor Lightning.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmtrain import callbacks as callbacks
    from lmtrain import data as data
    from lmtrain.api import Run, compare, compose, fits, load, plan, runs, train

__version__ = "0.2.0"
__all__ = ["Run", "__version__", "compare", "compose", "fits", "load", "plan", "runs", "train"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("lmtrain.api"), name)
    try:
        return importlib.import_module(f"lmtrain.{name}")
    except ModuleNotFoundError as missing:
        if missing.name != f"lmtrain.{name}":
            raise
        raise AttributeError(f"module 'lmtrain' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted([*__all__, "callbacks", "data"])
