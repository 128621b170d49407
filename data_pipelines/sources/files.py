"""Files of text as documents: which there are, which are text, and a fingerprint of them all."""

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lmtrain.errors import DataError, suggest

HASHED_WHOLE_BYTES = 256_000_000
MAX_INVALID_FRACTION = 0.01


@dataclass(frozen=True)
class FoundFile:
    """A file, the name its documents go by wherever it lies, and whether a person named this very file."""

    name: str
    path: Path
    is_named: bool


def find_files(paths: Iterable[str], *, suffixes: Collection[str]) -> tuple[FoundFile, ...]:
    """Return the files that paths stand for, each once, sorted by name.

    A file or a glob takes whatever it names; a folder is searched for files with these suffixes, hidden ones left out.

    Raises:
        DataError: A path does not exist, or there is no such file in any of them.
    """
    found: dict[Path, FoundFile] = {}
    others: Counter[str] = Counter()
    for named in paths:
        for file in _files_of(named):
            if file.path.suffix.lower() in suffixes or not Path(named).expanduser().is_dir():
                found.setdefault(file.path.resolve(), file)
            else:
                others[file.path.suffix or "without suffix"] += 1
    if not found:
        listed = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(5)) or "no file at all"
        msg = (
            f"source.paths={list(paths)} holds no text file: {listed}. Convert to text, or add to source.more_suffixes."
        )
        raise DataError(msg)
    return tuple(sorted(found.values(), key=lambda file: (file.name, file.path)))


def walk(folder: Path, *, excluded: Collection[str] = ()) -> Iterator[Path]:
    """Yield every file below a folder, without hidden files and folders and the excluded folders."""
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if name not in excluded and not name.startswith(".")]
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def read_text(path: Path) -> str:
    """Return a file's text; a few bytes that are no UTF-8 become U+FFFD.

    Raises:
        DataError: The file cannot be read, or is binary: NUL bytes, or more than 1 % that is not UTF-8.
    """
    content = _read_bytes(path)
    if reason := why_binary(content):
        raise DataError(f"{path} is not UTF-8 text: it {reason}. Convert it, or leave it out of source.paths.")
    return content.decode("utf-8-sig", errors="replace")


def why_binary(content: bytes) -> str | None:
    """Return what tells that these bytes are no text, or None."""
    if b"\0" in content:
        return "has NUL bytes (binary, or UTF-16)"
    try:
        content.decode()
    except UnicodeDecodeError:
        num_invalid = content.decode(errors="replace").count("\ufffd") - content.count("\ufffd".encode())
        if num_invalid > MAX_INVALID_FRACTION * len(content):
            return f"has {num_invalid:,} invalid sequences in {len(content):,} bytes"
    return None


def fingerprint_files(files: Iterable[FoundFile]) -> str:
    """Return a sha256 over names and contents; over names, sizes and times beyond 256 MB, to stay quick."""
    files = list(files)
    by_content = sum(file.path.stat().st_size for file in files) <= HASHED_WHOLE_BYTES
    total = hashlib.sha256()
    for file in files:
        state = hashlib.sha256(_read_bytes(file.path)).hexdigest() if by_content else _status_of(file.path)
        total.update(f"{file.name}\0{state}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def _files_of(named: str) -> Iterator[FoundFile]:
    path = Path(named).expanduser()
    if path.is_dir():
        root = path.resolve()
        for file in walk(path):
            yield FoundFile((root.name / file.relative_to(path)).as_posix(), file, is_named=False)
    elif path.exists():
        yield FoundFile(path.name, path, is_named=True)
    elif glob.has_magic(named) and (matches := glob.glob(str(path), recursive=True)):  # noqa: PTH207 (** and ~ at once)
        for file in (Path(match) for match in matches):
            if file.is_file():
                yield FoundFile(file.as_posix().lstrip("/"), file, is_named=False)
    else:
        siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
        rule = "matches no file" if glob.has_magic(named) else "does not exist"
        raise DataError(f"source.paths: {named} {rule} (looked from {Path.cwd()}).{suggest(path.name, siblings)}")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Make it readable, or leave it out.") from error


def _status_of(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"
