"""Files of this machine: folders, paths, globs, and a fingerprint of files."""

import glob
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from data_pipelines.sources.base import Skipped
from data_pipelines.sources.found_file import FoundFile
from lmtrain.errors import DataError, suggest_path

HASHED_WHOLE_BYTES = 256_000_000


def walk(folder: Path, *, excluded: Collection[str] = ()) -> Iterator[Path]:
    """Yield every file below a folder, without hidden files and folders and the excluded folders.

    Raises:
        DataError: A folder cannot be read.
    """

    def refuse(problem: OSError) -> None:
        raise unreadable(problem.filename, problem) from problem

    for parent, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if name not in excluded and not name.startswith(".")]
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def linked_folders(folder: Path) -> Iterator[Path]:
    """Yield the links to folders below a folder, not followed by `walk`: they may lead round in a circle."""
    for parent, subfolders, _ in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield from (path for path in (Path(parent, name) for name in subfolders) if path.is_symlink())


Hashes = dict[tuple[str, int, int, int, int], str]  # of a file in a state: address, inode, bytes, two times


def fingerprint_files(files: Iterable[FoundFile], *, known: Hashes | None = None) -> str:
    """Return a sha256 over names and contents; over names, sizes and times beyond 256 MB, to stay quick.

    `known` keeps the contents' hashes: an untouched file is not read again.
    """
    files, known = list(files), {} if known is None else known
    by_content = all(file.is_local for file in files) and sum(file.num_bytes for file in files) <= HASHED_WHOLE_BYTES
    total = hashlib.sha256()
    for file in files:
        state = _hash_of(file, known) if by_content else _state_of(file)
        total.update(f"{file.name}\0{state}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def local_file(path: Path, *, name: str, is_named: bool = False, is_searched_for: bool = False) -> FoundFile:
    """Return the facts of a file of this machine."""
    status = path.stat()
    return FoundFile(
        name=name,
        address=str(path.resolve()),
        num_bytes=status.st_size,
        changed=str(status.st_mtime_ns),
        is_named=is_named,
        is_searched_for=is_searched_for,
    )


def find_local(named: str, *, key: str = "source.paths") -> Iterator[FoundFile | Skipped]:
    """Yield the files behind a path or a glob of this machine: a folder's without hidden ones.

    Links come last, so that a file goes by its own name; in a folder, anything but a file is skipped with a reason.

    Raises:
        DataError: There is none, or a pipe.
    """
    path = Path(named).expanduser()
    if path.is_dir():
        root = path.resolve()
        yield from (Skipped(str(link), "links to folders") for link in linked_folders(path))
        for file in sorted(walk(path), key=Path.is_symlink):
            if file.is_file():
                name = (root.name / file.relative_to(path)).as_posix()
                yield local_file(file, name=name, is_searched_for=True)
            else:
                is_broken = file.is_symlink() and not file.exists()
                yield Skipped(str(file), "broken links" if is_broken else "pipes or devices")
    elif path.exists():
        if not path.is_file():
            rule = "is a pipe or a device, and a source is read more than once"
            raise DataError(f"{key}: {named} {rule}; write it to a file, and name that.")
        yield local_file(path, name=path.name, is_named=True)
    elif glob.has_magic(named) and (matches := glob.glob(str(path), recursive=True)):  # noqa: PTH207 (** and ~ at once)
        for file in (Path(match) for match in matches):
            if file.is_file():
                yield local_file(file, name=file.as_posix().lstrip("/"))
    else:
        rule = "matches no file" if glob.has_magic(named) else "does not exist"
        raise DataError(f"{key}: {named} {rule} (looked from {Path.cwd()}).{suggest_path(path)}")


def unreadable(path: object, problem: OSError) -> DataError:
    """Return the refusal of an unreadable file or folder."""
    return DataError(f"{path} cannot be read: {problem.strerror or problem}. Make it readable, or leave it out.")


def _hash_of(file: FoundFile, known: Hashes) -> str:
    try:
        status = Path(file.address).stat()
        key = (file.address, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if key not in known:
            with Path(file.address).open("rb") as content:
                known[key] = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as problem:
        raise unreadable(file.address, problem) from problem
    return known[key]


def _state_of(file: FoundFile) -> str:
    """Return the present marks of a file's content."""
    if not file.is_local:
        return f"{file.num_bytes} {file.changed}"
    try:
        status = Path(file.address).stat()
    except OSError as problem:
        raise unreadable(file.address, problem) from problem
    return f"{status.st_size} {status.st_mtime_ns}"
