"""Prepared tokens on disk and the rows that training reads from them: shards, packing, order, mixtures, other formats.

`TokenDataModule` serves a prepared folder's batches to any Lightning Trainer, `RowsDataModule` those of rows in memory;
`training_tokens` widens a batch.
"""

from importlib import import_module
from typing import Any, Final

# Lightning's side is in the training room, above this one; imported on first use.
_ELSEWHERE: Final = {
    "RowsDataModule": "lmtrain.training.own_rows",
    "TokenDataModule": "lmtrain.training.datamodule",
    "training_tokens": "lmtrain.training.token_batch",
}


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE[name]), name)
