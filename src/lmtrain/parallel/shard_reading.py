"""Read a sharded checkpoint from anywhere without running a line of it.

torch writes the `.metadata`, and every value other than a tensor, as a pickle. A pickle can name any function to call,
and torch loads both kinds without a guard (2.13). Here the first may name only the parts of torch's own metadata, the
second only the types of `torch.load(weights_only=True)`.
"""

import pickle
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed.checkpoint as sharded_checkpoint
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem
from typing_extensions import override

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.bounded_pickle import require_bounded
from lmtrain.storage.plain_values import not_plain

METADATA: Final = ".metadata"
# Exact pairs: a module's name alone lets through all of the module's imports, and a dotted name everything beyond.
NAMES: Final = frozenset(
    {("torch", name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    | {
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),  # Python 3.13
        ("torch", "Size"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
        ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
        ("torch.distributed.checkpoint.metadata", "Metadata"),
        ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
        ("torch.distributed.checkpoint.metadata", "StorageMeta"),
        ("torch.distributed.checkpoint.metadata", "TensorProperties"),
        ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
        ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
        ("torch.distributed.checkpoint.storage", "WriteResult"),  # a rank's report of its shards
        ("torch.serialization", "_get_layout"),  # of torch's strings for layouts
    }
)


def unpickle(content: bytes) -> Any:
    """Return the content of a pickle of nothing but the names on the list.

    Raises:
        UnpicklingError: It names something else; Python's own errors on damage pass through too.
    """
    require_bounded(content)
    return _NamesOnTheList(BytesIO(content), fix_imports=False).load()


def read_metadata(sharded: Path) -> Metadata:
    """Return a sharded checkpoint's own list of its content, with places.

    Raises:
        EnvironmentProblem: It names anything foreign to our checkpoints, or is no metadata.
    """
    path = sharded / METADATA
    try:
        found = unpickle(path.read_bytes())
    except Exception as problem:  # damaged bytes raise nearly anything
        raise EnvironmentProblem(f"{path} cannot be read safely: {problem}; use another checkpoint.") from problem
    if not isinstance(found, Metadata):
        raise EnvironmentProblem(f"{path} holds a {type(found).__name__}, no metadata; use another checkpoint.")
    return found


def read_shards(state: dict[str, Any], sharded: Path, *, alone: bool = False) -> None:
    """Fill a state in place from a sharded checkpoint: together with all ranks, or alone.

    Raises:
        EnvironmentProblem: A value in it is more than plain values and tensors.
        CheckpointException: It lacks a name, or holds another shape.
    """
    with warnings.catch_warnings():  # torch warns of the asked-for no_dist (2.13)
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            sharded_checkpoint.load(state, storage_reader=_Reader(sharded), planner=_PlainValues(), no_dist=alone)
        except CheckpointException as failure:
            for problem, _ in failure.failures.values():
                if isinstance(problem, pickle.UnpicklingError):
                    raise not_plain(sharded, problem) from failure
            raise


class _NamesOnTheList(pickle.Unpickler):
    @override
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in NAMES:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, which no checkpoint of ours does")
        return super().find_class(module_name, global_name)


class _Reader(FileSystemReader):
    """A reader of the one metadata; torch's own also unpickles a rank's `__0.metadata` beside an empty one."""

    def __init__(self, sharded: Path) -> None:
        super().__init__(sharded)
        self._metadata = read_metadata(sharded)

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata


class _PlainValues(DefaultLoadPlanner):
    @override
    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        plain = BytesIO()  # torch's planner unpickles without a guard: it is given nothing but bytes of our own
        torch.save(torch.load(value, weights_only=True), plain)
        plain.seek(0)
        super().load_bytes(read_item, plain)
