"""Read and write the weights of a folder of `*.safetensors`, in one file or in shards with an index.

Names, dtypes and shapes are known from the files' headers, before anything is allocated; at most one shard is in
memory. The format: https://github.com/huggingface/safetensors (a length, a JSON header, the bytes).
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lmtrain.errors import DataError, suggest
from lmtrain.storage import foreign_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model*.bin"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SHARD = re.compile(r"[\w-][\w.-]{0,200}")
MAX_SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True)
class TensorFacts:
    """One tensor's entry in the header of a file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        """Return the tensor, in the dtype it is stored in; raises DataError for a damaged file."""
        try:
            with safe_open(self.file, framework="pt") as file:
                return file.get_tensor(self.name)
        except SafetensorError as problem:
            raise DataError(f"{self.name} in {self.file} cannot be read ({problem}); copy the file again.") from problem


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor made while its shard is written."""

    name: str
    num_bytes: int
    make: Callable[[], Tensor]


class WeightFiles:
    """The tensors of a folder by name, read one by one; given `facts` have other names than in the files.

    Raises: DataError for a missing, truncated or damaged file.
    """

    def __init__(self, folder: Path, facts: dict[str, TensorFacts] | None = None) -> None:
        self.folder = folder
        self.facts = facts or {}
        for file in () if facts is not None else _files_of(folder):
            for name, found in read_header(file).items():
                if name in self.facts:
                    raise DataError(
                        f"{name} is in {self.facts[name].file} and in {file}; copy the model's folder again."
                    )
                self.facts[name] = found

    def read(self, name: str) -> Tensor:
        """Return one tensor, in the dtype it is stored in."""
        return self.facts[name].read()


def read_header(file: Path) -> dict[str, TensorFacts]:
    """Return a file's content by its header alone, checked against the length of the file."""
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
            return {name: TensorFacts(file, name, it.get_dtype(), (*it.get_shape(),)) for name, it in slices.items()}
    except SafetensorError as problem:
        raise DataError(f"{file} is damaged or not a safetensors file ({problem}); copy it again.") from problem


def write_shards(folder: Path, tensors: Sequence[TensorToWrite], *, max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
    """Write tensors into one file, or above `max_shard_bytes` into several with an index."""
    by_name = {tensor.name: tensor for tensor in tensors}
    split = split_state_dict_into_shards_factory(
        by_name,
        get_storage_size=lambda tensor: tensor.num_bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_bytes,
    )
    for file, names in split.filename_to_tensors.items():
        _save(folder / file, [by_name[name] for name in names])
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _save(file: Path, shard: Iterable[TensorToWrite]) -> None:
    file.touch()
    mode = file.stat().st_mode
    tensors = {tensor.name: tensor.make().contiguous() for tensor in shard}
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as problem:  # also a full disk
        raise OSError(str(problem)) from problem
    file.chmod(mode)  # safetensors 0.8 leaves its files to their owner alone


def _files_of(folder: Path) -> list[Path]:
    """Return the files of the index, or the one file."""
    if (folder / INDEX).is_file():
        try:
            names: set[Any] = {*foreign_json.read(folder / INDEX)["weight_map"].values()}
        except (ValueError, KeyError, AttributeError, TypeError) as problem:
            raise DataError(f"{folder / INDEX} is damaged ({problem!r}); copy it again.") from problem
        if strange := [name for name in names if not isinstance(name, str) or not SHARD.fullmatch(name)]:
            raise DataError(f"{folder / INDEX} is damaged: {str(strange[0])[:100]!r} is not a file of this folder.")
        if missing := sorted(name for name in names if not (folder / name).is_file()):
            raise DataError(f"{folder} lacks {', '.join(missing)}, which {INDEX} names; copy the whole folder.")
        return [folder / name for name in sorted(names)]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if any(folder.glob(PICKLED)):
        raise DataError(
            f"{folder} has no {SINGLE} but pickled weights, which can run code; save them again with "
            "model.save_pretrained(FOLDER) of transformers."
        )
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    raise DataError(f"{folder} has neither {SINGLE} nor {INDEX}.{suggest(SINGLE, found)}")


def require_finite(tensor: Tensor, *, name: str, where: object) -> Tensor:
    """Return a tensor of finite values."""
    if not tensor.numel() or all(bool(end.isfinite()) for end in torch.aminmax(tensor)):  # isfinite itself takes 10x
        return tensor
    num_nan, num_infinite = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    dtype = str(tensor.dtype).removeprefix("torch.")
    raise DataError(
        f"{name} in {where} has {num_infinite} infinities and {num_nan} NaN among {tensor.numel()} values of {dtype}; "
        "use the weights in the dtype they were trained in, or an earlier checkpoint."
    )
