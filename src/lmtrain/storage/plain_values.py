"""Read torch's files of tensors and plain values, and refuse those with anything else.

`torch.save` writes pickles in a zip file. A pickle can name any function to call, or a buffer of any size. An entry can
be compressed a thousandfold; torch unpacks it before it compares sizes, or maps it as it stands (2.13).
"""

import re
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.foreign_json import require_shallow


def load_plain(path: Path, **options: Any) -> Any:
    """Return the content of a file of `torch.save`; the options are those of `torch.load`.

    Raises:
        EnvironmentProblem: The file names something else than tensors and plain values, such as code to run, or is no
            file of torch.
        OSError: It cannot be read.
    """
    try:
        require_plain_zip(path)
        content = torch.load(path, weights_only=True, **options)
        require_shallow(content)
    except UnpicklingError as problem:
        raise not_plain(path, problem) from problem
    except Exception as problem:  # damaged bytes raise nearly anything
        if isinstance(problem, OSError) and problem.filename is not None:
            raise
        reason = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise EnvironmentProblem(f"{path} cannot be read: {reason}; use another checkpoint.") from problem
    return content


def require_plain_zip(file: Path | IO[bytes]) -> None:
    """Refuse an entry that is compressed, or a pickle with a buffer of its own.

    Raises:
        ValueError or UnpicklingError: There is one, or the file is no zip.
    """
    with zipfile.ZipFile(file) as opened:
        for entry in opened.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"its entry {entry.filename} is compressed")
            if entry.filename.endswith(".pkl") and b"bytearray" in opened.read(entry):
                raise UnpicklingError("it names builtins.bytearray")


def not_plain(path: Path, problem: UnpicklingError) -> EnvironmentProblem:
    """Name the file or folder with more than tensors and plain values, and the name refused by torch."""
    named = re.search(r"(?:it names|GLOBAL) (\S+)", str(problem))
    found = f"names {named[1]}" if named else "cannot be unpickled"
    rule = "holds more than tensors and plain values"
    return EnvironmentProblem(f"{path} {rule}: it {found}; use a checkpoint from a source that you trust.")
