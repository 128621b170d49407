"""Read a sharded checkpoint from anywhere without running a line of it.

torch writes the `.metadata`, and every value other than a tensor, as a pickle. A pickle can name any function to call,
and torch loads both kinds without a guard (2.13). Here the first may name only the parts of torch's own metadata, the
second only the types of `torch.load(weights_only=True)`. Each piece of a shard is a file of torch's by itself.

A whole state and a sharded one can be read by every strategy: shards are joined, and a whole state is cut. A
whole state numbers an optimizer's parameters, a sharded one names them; both list them in the order of the optimizer's
groups.
"""

import os
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from enum import Enum
from io import BytesIO
from itertools import chain
from pathlib import Path
from types import FunctionType
from typing import IO, Any, ClassVar, Final

import torch
import torch.distributed.checkpoint as sharded_checkpoint
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.tensor import DTensor, distribute_tensor
from typing_extensions import override

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.checkpoint_layout import OPTIMIZERS, REST, WEIGHTS, sharded_name
from lmtrain.storage.plain_values import load_plain, not_plain, require_bounded, require_plain_zip

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
    """Return the content of a pickle of nothing but the names on the list."""
    require_bounded(content)
    return _NamesOnTheList(BytesIO(content), fix_imports=False).load()


def read_metadata(sharded: Path) -> Metadata:
    """Return a sharded checkpoint's own list of its content, with places."""
    path = sharded / METADATA
    try:
        found = unpickle(path.read_bytes())
    except Exception as problem:  # damaged bytes raise nearly anything
        raise EnvironmentProblem(f"{path} cannot be read safely: {problem}; use another checkpoint.") from problem
    if not isinstance(found, Metadata):
        raise EnvironmentProblem(f"{path} holds a {type(found).__name__}, no metadata; use another checkpoint.")
    return found


def read_shards(state: dict[str, Any], sharded: Path, *, alone: bool = False) -> None:
    """Fill a state in place from a sharded checkpoint: together with all ranks, or alone."""
    with warnings.catch_warnings():  # torch warns of the asked-for no_dist (2.13)
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            sharded_checkpoint.load(state, storage_reader=_Reader(sharded), planner=_PlainValues(), no_dist=alone)
        except CheckpointException as failure:
            for problem, _ in failure.failures.values():
                if isinstance(problem, pickle.UnpicklingError):
                    raise not_plain(sharded, problem) from failure
                if isinstance(problem, EnvironmentProblem):
                    raise problem from failure
            raise


class _NamesOnTheList(pickle._Unpickler):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    """Python's own unpickler, whose opcode that sets attributes is refused for classes and constants."""

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch}  # noqa: SLF001  # pyright: ignore
    stack: list[Any]

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which lmtrain's checkpoints never do")
        return super().find_class(module, name)

    def _load_build(self) -> None:
        if isinstance(self.stack[-2], type | FunctionType | Enum):
            raise pickle.UnpicklingError("it changes a class or a constant that it names")
        pickle._Unpickler.dispatch[pickle.BUILD[0]](self)  # noqa: SLF001  # pyright: ignore

    dispatch[pickle.BUILD[0]] = _load_build


class _Reader(FileSystemReader):
    """A reader of the one metadata, and of pieces that are plain files of torch's in the folder itself.

    torch's own also unpickles a rank's `__0.metadata` next to an empty one, goes to any path, and unpacks any entry.
    """

    def __init__(self, sharded: Path) -> None:
        super().__init__(sharded)
        self._metadata = read_metadata(sharded)
        for name in sorted({_file_of(one) for one in (self._metadata.storage_data or {}).values()}):
            if not (sharded / name).is_file():
                raise EnvironmentProblem(f"{sharded / name} is missing; use another checkpoint.")

    @override
    def _slice_file(self, file: Any, sinfo: Any) -> IO[bytes]:
        num_bytes = min(sinfo.length, max(0, file.seek(0, os.SEEK_END) - sinfo.offset))
        file.seek(sinfo.offset)
        piece = BytesIO(file.read(num_bytes))  # torch's own view of a part seeks from its end wrongly (2.13)
        try:
            require_plain_zip(piece)
        except (ValueError, zipfile.BadZipFile) as problem:
            place = f"{self.path}/{sinfo.relative_path}"
            raise EnvironmentProblem(f"{place} cannot be read: {problem}; use another checkpoint.") from problem
        piece.seek(0)
        return piece

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata


def _file_of(place: Any) -> str:
    """Return the name of a piece's file."""
    name = getattr(place, "relative_path", None)
    numbers = (getattr(place, "offset", None), getattr(place, "length", None))
    is_place = all(isinstance(number, int) and number >= 0 for number in numbers)
    if not isinstance(name, str) or name in ("", "..") or Path(name).name != name or not is_place:
        raise EnvironmentProblem(f"{METADATA} has the place {str(name)[:100]!r} of a shard; use another checkpoint.")
    if getattr(place, "transform_descriptors", None):
        raise EnvironmentProblem(
            f"{METADATA} wants {name} unpacked, which lmtrain's checkpoints never do; use another one."
        )
    return name


class _PlainValues(DefaultLoadPlanner):
    @override
    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        plain = BytesIO()  # torch's planner unpickles without a guard: it is given nothing but bytes of our own
        torch.save(torch.load(value, weights_only=True), plain)
        plain.seek(0)
        super().load_bytes(read_item, plain)


def read_whole(sharded: Path) -> dict[str, Any]:
    """Return a sharded checkpoint in the layout of one file, on this process's CPU; each process reads alone."""
    metadata = read_metadata(sharded)
    paths: dict[str, tuple[str | int, ...]] | None = metadata.planner_data
    if paths is None or not paths.keys() >= metadata.state_dict_metadata.keys():
        raise EnvironmentProblem(f"{sharded} does not name the place of each of its values; use another checkpoint.")
    flat: dict[str, Any] = {
        name: torch.empty(facts.size, dtype=facts.properties.dtype)
        if isinstance(facts, TensorStorageMetadata)
        else None
        for name, facts in metadata.state_dict_metadata.items()
    }
    read_shards(flat, sharded, alone=True)
    nested = _nested({paths[name]: value for name, value in flat.items()})
    num_optimizers = sum(name != WEIGHTS for name in nested)
    optimizers = [{"state": {}, **nested[sharded_name(index)]} for index in range(num_optimizers)]
    return {**load_plain(sharded / REST), WEIGHTS: nested[WEIGHTS], OPTIMIZERS: optimizers}


def part_weights(whole: Mapping[str, Tensor], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return whole weights laid out over the ranks as those of the same names in `like`."""
    return {name: _part(value, like.get(name)) for name, value in whole.items()}


def part_optimizer_state(whole: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's whole, numbered state with the names and the layout of `like`, a state of the same one."""
    numbers, names = ([group["params"] for group in state["param_groups"]] for state in (whole, like))
    if [len(group) for group in numbers] != [len(group) for group in names]:
        raise EnvironmentProblem(
            f"The checkpoint's optimizer has groups of {[*map(len, numbers)]} parameters, this one has groups of "
            f"{[*map(len, names)]}; go on with the optimizer of the checkpoint's run."
        )
    name_of = dict(zip(chain(*numbers), chain(*names), strict=True))
    state = {
        name_of[number]: {
            key: _part(value, like["state"].get(name_of[number], {}).get(key)) for key, value in one.items()
        }
        for number, one in whole["state"].items()
    }
    groups = [{**group, "params": [*own]} for group, own in zip(whole["param_groups"], names, strict=True)]
    return {"state": state, "param_groups": groups}


def _part(value: Any, like: Any) -> Any:
    """Cut a rank's part out of a value read by every rank: no communication."""
    if not isinstance(value, Tensor) or not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _nested(flat: Mapping[tuple[str | int, ...], Any]) -> Any:
    """Build the mappings and lists along paths; a level with keys from 0 on is a list."""
    if () in flat:
        return flat[()]
    levels: dict[str | int, dict[tuple[str | int, ...], Any]] = {}
    for (first, *rest), value in flat.items():
        levels.setdefault(first, {})[tuple(rest)] = value
    if all(isinstance(key, int) for key in levels):
        return [_nested(levels[key]) for key in sorted(levels)]
    return {key: _nested(level) for key, level in levels.items()}
