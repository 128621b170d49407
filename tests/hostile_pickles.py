"""Pickles that run a command when an unguarded reader opens them, and checkpoints that hold one."""

import io
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as sharded_checkpoint
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from lmtrain.parallel.shard_reading import METADATA
from lmtrain.parallel.shard_writing import SHARDED
from lmtrain.storage.hashed_folder import MANIFEST, read_manifest, write_atomically
from lmtrain.training.checkpointing.checkpoint_io import STATE


class Command:
    """Pickled, a call of subprocess.call."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[list[str]]]:
        return subprocess.call, (["touch", str(self.witness)],)


def dotted(witness: Path) -> bytes:
    """Return a pickle that reaches os.system by a dotted name, through a module that a list by modules must trust."""
    words = ["torch.distributed.checkpoint.filesystem", "torch.ctypes.util.os.system", f"touch {witness}"]
    module, name, command = (b"\x8c" + bytes([len(word)]) + word.encode() for word in words)
    return b"\x80\x04" + module + name + b"\x93" + command + b"\x85" + b"R."  # STACK_GLOBAL, TUPLE1, REDUCE


def in_metadata(checkpoint: Path, witness: Path) -> None:
    """Put the dotted name in place of the metadata."""
    (checkpoint / SHARDED / METADATA).write_bytes(dotted(witness))


def in_metadata_of_a_rank(checkpoint: Path, witness: Path) -> None:
    """Leave the metadata empty, so that torch's own reader looks for that of a rank."""
    (checkpoint / SHARDED / METADATA).write_bytes(pickle.dumps({}))
    (checkpoint / SHARDED / f"__0{METADATA}").write_bytes(dotted(witness))


def in_a_value(checkpoint: Path, witness: Path) -> None:
    """Declare every tensor a value that torch's own planner unpickles, and put the command there."""
    folder = checkpoint / SHARDED
    metadata = pickle.loads((folder / METADATA).read_bytes())
    content = io.BytesIO()
    torch.save(Command(witness), content)
    one = next(iter(metadata.storage_data.values()))
    one.relative_path, one.offset, one.length = "__9_9.distcp", 0, len(content.getvalue())
    metadata.storage_data = {MetadataIndex(name): one for name in metadata.state_dict_metadata}
    metadata.state_dict_metadata = dict.fromkeys(metadata.state_dict_metadata, BytesStorageMetadata())
    (folder / "__9_9.distcp").write_bytes(content.getvalue())
    (folder / METADATA).write_bytes(pickle.dumps(metadata))


def in_tensors(checkpoint: Path, witness: Path) -> None:
    """Put the command where the bytes of every tensor are."""
    folder = checkpoint / SHARDED
    metadata = pickle.loads((folder / METADATA).read_bytes())
    content = io.BytesIO()
    torch.save(Command(witness), content)
    for one in metadata.storage_data.values():
        one.relative_path, one.offset, one.length = "__9_9.distcp", 0, len(content.getvalue())
    (folder / "__9_9.distcp").write_bytes(content.getvalue())
    (folder / METADATA).write_bytes(pickle.dumps(metadata))


def in_one_file(checkpoint: Path, witness: Path) -> None:
    """Put the command in place of a checkpoint of one file."""
    shutil.rmtree(checkpoint / SHARDED)
    torch.save({"state_dict": {"language_model.w": Command(witness)}}, checkpoint / STATE)


ATTACKS = (in_metadata, in_metadata_of_a_rank, in_a_value, in_tensors, in_one_file)


def make_hostile(checkpoint: Path, attack: Callable[[Path, Path], None], witness: Path) -> None:
    """Make a checkpoint a sharded one of the same weights, attack it, and write its manifest anew."""
    facts = {key: value for key, value in read_manifest(checkpoint).items() if key != "files"}
    if (checkpoint / STATE).is_file():
        state = torch.load(checkpoint / STATE, weights_only=True)["state_dict"]
        sharded_checkpoint.save({"state_dict": state}, checkpoint_id=checkpoint / SHARDED, no_dist=True)
        (checkpoint / STATE).unlink()
    attack(checkpoint, witness)
    (checkpoint / MANIFEST).unlink()
    source = checkpoint.rename(checkpoint.with_name("attacked"))
    write_atomically(checkpoint, facts=facts, write=lambda folder: shutil.copytree(source, folder, dirs_exist_ok=True))
    shutil.rmtree(source)
