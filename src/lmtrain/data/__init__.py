"""Prepared tokens on disk and the rows that training reads from them: shards, packing, order, mixtures, other formats.

`TokenDataModule` serves a prepared folder's batches to any Lightning Trainer, `training_tokens` widens a batch.
"""

from importlib import import_module
from typing import Any, Final

# Lightning's side is in the training room, above this one; imported on first use.
_ELSEWHERE: Final = {
    "TokenDataModule": "lmtrain.training.datamodule",
    "training_tokens": "lmtrain.training.token_batch",
}


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE[name]), name)
