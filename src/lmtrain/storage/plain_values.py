"""Read torch's files of tensors and plain values, and refuse those with anything else.

`torch.save` writes pickles in a zip file. A pickle can name any function to call, or a buffer of any size. An entry can
be compressed a thousandfold; torch unpacks it before it compares sizes, or maps it as it stands (2.13).
"""

import os
import pickletools
import re
import struct
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, Final
from zipfile import ZIP_STORED, ZipFile

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.checkpoint_layout import WEIGHTS
from lmtrain.storage.damage import one_line
from lmtrain.storage.foreign_json import require_an_end, require_shallow

# APPNOTE.TXT of PKWARE, sections 4.3.7 and 4.3.16
LOCAL_ENTRY: Final = b"PK\x03\x04"
END_SIGNATURE: Final = b"PK\x05\x06"
END_OF_LIST: Final = struct.Struct("<4s4H2LH")
UNKNOWN: Final = 0xFFFFFFFF


def load_plain(path: Path, **options: Any) -> Any:
    """Return the content of a file of `torch.save`; the options are those of `torch.load`.

    Raises:
        EnvironmentProblem: The file names something else than tensors and plain values, such as code to run, or is not
            a file that torch writes.
        OSError: It cannot be read.
    """
    try:
        require_an_end(path)
        require_plain_zip(path)
        content = torch.load(path, weights_only=True, **options)
        require_shallow(content)
        require_whole_tensors(content)
    except UnpicklingError as problem:
        raise not_plain(path, problem) from problem
    except Exception as problem:  # damaged bytes raise nearly anything
        if isinstance(problem, FileNotFoundError | PermissionError):
            raise
        reason = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise EnvironmentProblem(f"{path} cannot be read: {reason}; use another checkpoint.") from problem
    return content


def load_state(path: Path, **options: Any) -> dict[str, Any]:
    """Return a checkpoint's state from its one file; see `load_plain`."""
    content = load_plain(path, **options)
    if not isinstance(content, dict) or not isinstance(content.get(WEIGHTS), dict):
        raise EnvironmentProblem(f"{path} is not a checkpoint: it has no {WEIGHTS}; use another checkpoint.")
    return content


def require_plain_zip(file: Path | IO[bytes]) -> None:
    """Refuse a zip file that another reader may understand differently, a compressed entry, a pickle with a buffer.

    A zip file has its list of entries at its end and may begin with anything; torch looks at the first bytes. With one
    list, at the very end and without an offset, all readers see the same entries.
    """
    with file.open("rb") if isinstance(file, Path) else nullcontext(file) as content, ZipFile(content) as opened:
        content.seek(0)
        if content.read(4) != LOCAL_ENTRY:
            raise ValueError("it does not begin as a file of torch.save")
        end = content.seek(-END_OF_LIST.size, os.SEEK_END)
        signature, _, _, _, _, size, start, comment = END_OF_LIST.unpack(content.read(END_OF_LIST.size))
        if signature != END_SIGNATURE or comment:
            raise ValueError("its list of entries is not at its end")
        is_large = UNKNOWN in (size, start)  # zip64 has the numbers elsewhere, and ZipFile has found them
        if not is_large and (start != opened.start_dir or start + size > end):
            raise ValueError("it has two lists of entries")
        names = [entry.filename for entry in opened.infolist()]
        if len({*names}) != len(names):
            raise ValueError("it has two entries of one name")
        for entry in opened.infolist():
            if entry.compress_type != ZIP_STORED or entry.compress_size != entry.file_size:
                raise ValueError(f"its entry {entry.filename} is compressed")
            if entry.header_offset + entry.file_size > end:
                raise ValueError(f"its entry {entry.filename} is longer than the file")
            if entry.filename.endswith(".pkl") and b"bytearray" in opened.read(entry):
                raise UnpicklingError("it names builtins.bytearray")


def require_whole_tensors(content: Any) -> None:
    """Refuse a tensor of more values than its memory holds: one number with strides of 0 may stand for terabytes."""
    waiting = [content]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, Tensor) and not is_traceable_wrapper_subclass(one):
            is_whole = one.layout == torch.strided and one.nbytes <= one.untyped_storage().nbytes()
            if not is_whole and one.numel():
                raise ValueError(f"a tensor of shape {tuple(one.shape)} has fewer values than its shape says")


def not_plain(path: Path, problem: UnpicklingError) -> EnvironmentProblem:
    """Name the file or folder with more than tensors and plain values, and the name refused by torch."""
    named = re.search(r"(?:it names|GLOBAL) (\S+)", str(problem))
    found = f"names {named[1]}" if named else "cannot be unpickled"
    rule = "holds more than tensors and plain values"
    return EnvironmentProblem(f"{path} {rule}: it {found}; use a checkpoint from a source that you trust.")


def require_bounded(content: bytes) -> None:
    """Refuse a pickle that asks for more than its own length."""
    try:
        for instruction, argument, _ in pickletools.genops(content):
            if instruction.name == "PUT":  # of protocol 0, which nobody writes any more
                raise UnpicklingError("it has an instruction of protocol 0, PUT")
            if instruction.name == "LONG_BINPUT" and int(argument or 0) > len(content):
                raise UnpicklingError("it asks for a table longer than itself")
    except ValueError as problem:  # an argument beyond the end, or an unknown instruction
        raise UnpicklingError(one_line(problem)) from problem
