"""The files behind paths: files, folders and globs, on this machine or at any address known to fsspec."""

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

import fsspec

from lmtrain.data.text_files import FoundFile, is_text, local_file, store_problems, unreadable
from lmtrain.errors import DataError, suggest_path
from lmtrain.storage.hashed_folder import file_sha256

LISTED = 5  # kinds of files left out
HASHED_WHOLE_BYTES = 256_000_000
# What marks a changed file, at one kind of store or another.
CHANGE_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "sha256", "blob_id", "generation", "mtime", "LastModified",
                "last_modified", "modified", "created")  # fmt: skip


@dataclass(frozen=True)
class FoundFiles:
    """The files read, and the number of others in the same folders, by suffix or by reason."""

    files: tuple[FoundFile, ...]
    left_out: Counter[str]


def find_files(paths: Iterable[str], *, suffixes: Collection[str], key: str = "source.paths") -> FoundFiles:
    """Return the files behind the paths of the setting `key`, each once, sorted by name.

    A file or a glob takes whatever it names. A folder is searched for files with these suffixes, and on this machine
    for text without a suffix, such as LICENSE or GPL-2.1; hidden files are left out.
    """
    found: dict[str, FoundFile] = {}
    left_out: Counter[str] = Counter()
    for named in paths:
        for file in find_remote(named) if "://" in named else find_local(named, key=key):
            reason = _why_left_out(file, suffixes)
            if reason is None and found.setdefault(file.address, file) is not file and file.is_searched_for:
                reason = "links to files taken already"
            if reason is not None:
                left_out[reason] += 1
    if not found:
        listed = list_counts(left_out) or "no file at all"
        fix = "Convert to text, or add to source.more_suffixes."
        raise DataError(f"{key}={list(paths)} holds no text file: {listed}. {fix}")
    return FoundFiles(tuple(sorted(found.values(), key=lambda file: (file.name, file.address))), left_out)


def list_counts(counts: Counter[str]) -> str:
    """Return "5 .pdf, 2 .jpg, 9 others": the five most common, and the rest."""
    listed = [f"{count:,} {what}" for what, count in counts.most_common(LISTED)]
    others = counts.total() - sum(count for _, count in counts.most_common(LISTED))
    return ", ".join([*listed, *([f"{others:,} others"] if others else [])])


def find_local(named: str, *, key: str = "source.paths") -> Iterator[FoundFile]:
    """Yield the files behind a path or a glob of this machine: a folder's without hidden ones.

    Links come last, so that a file goes by its own name; pipes, devices and links to folders are left out.
    """
    path = Path(named).expanduser()
    if path.is_dir():
        root = path.resolve()
        for file in sorted(filter(Path.is_file, walk(path)), key=Path.is_symlink):
            yield local_file(file, name=(root.name / file.relative_to(path)).as_posix(), is_searched_for=True)
    elif path.exists():
        if not path.is_file():
            raise DataError(f"{key}: {named} is a pipe or a device; write it to a file, and name that.")
        yield local_file(path, name=path.name, is_named=True)
    elif glob.has_magic(named) and (matches := glob.glob(str(path), recursive=True)):  # noqa: PTH207 (** and ~ at once)
        for file in filter(Path.is_file, map(Path, matches)):
            yield local_file(file, name=file.as_posix().lstrip("/"))
    else:
        rule = "matches no file" if glob.has_magic(named) else "does not exist"
        raise DataError(f"{key}: {named} {rule} (current folder: {Path.cwd()}).{suggest_path(path)}")


def find_remote(named: str) -> Iterator[FoundFile]:
    """Yield the files of an address: itself, a glob's matches, or a folder's without hidden ones.

    Raises:
        ConfigurationError: The protocol is unknown.
        DataError: The file does not exist.
        EnvironmentProblem: A package is missing, or the address cannot be reached.
    """
    with store_problems(named):
        system, path = cast("tuple[Any, str]", fsspec.core.url_to_fs(named))
        is_glob = any(sign in path for sign in "*?[")
        if not is_glob and (named.startswith(("http://", "https://")) or system.isfile(path)):
            yield _remote_file(system, system.info(path), name=PurePosixPath(path).name, is_named=True)
            return
        listed: Mapping[str, Any] = system.glob(path, detail=True) if is_glob else system.find(path, detail=True)
        files = [(file, info) for file, info in sorted(listed.items()) if info.get("type") == "file"]
        if not files:
            raise DataError(f"source.paths: no file at {named}.")
        root = PurePosixPath(path.rstrip("/"))
        for file, info in files:
            inside = file.lstrip("/").removeprefix(str(root).lstrip("/")).lstrip("/")
            if is_glob:
                yield _remote_file(system, info, name=file.lstrip("/"))
            elif not any(part.startswith(".") for part in inside.split("/")):
                yield _remote_file(system, info, name=f"{root.name}/{inside}", is_searched_for=True)


def walk(folder: Path, *, excluded: Collection[str] = ()) -> Iterator[Path]:
    """Yield every file below a folder, without hidden files and folders and the excluded folders."""

    def refuse(problem: OSError) -> None:
        raise unreadable(problem.filename, problem) from problem

    for parent, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if name not in excluded and not name.startswith(".")]
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def fingerprint_files(files: Iterable[FoundFile]) -> str:
    """Return a sha256 over names and contents; over names, sizes and times beyond 256 MB, to stay quick."""
    files = list(files)
    by_content = all(file.is_local for file in files) and sum(file.num_bytes for file in files) <= HASHED_WHOLE_BYTES
    total = hashlib.sha256()
    for file in files:
        state = _state_of(file, by_content=by_content)
        total.update(f"{file.name}\0{state}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def _state_of(file: FoundFile, *, by_content: bool) -> str:
    """Return the hash of a file's content, or its size and time of change."""
    if not file.is_local:
        return f"{file.num_bytes} {file.changed}"
    try:
        if by_content:
            return file_sha256(Path(file.address))
        status = Path(file.address).stat()
    except OSError as problem:
        raise unreadable(file.address, problem) from problem
    return f"{status.st_size} {status.st_mtime_ns}"


def _why_left_out(file: FoundFile, suffixes: Collection[str]) -> str | None:
    suffix = file.plain_name.suffix.lower()
    if suffix in suffixes or not file.is_searched_for:
        return None
    if suffix and not suffix[1:].isdigit():  # the 1 of GPL-2.1 is a version
        return suffix
    if not file.is_local:
        return "without suffix"  # opening each would be a request to the store
    return None if is_text(file) else "binary files without a suffix"


def _remote_file(system: Any, info: Mapping[str, Any], *, name: str, **kind: bool) -> FoundFile:
    marks = [f"{mark}={info[mark]}" for mark in CHANGE_MARKS if info.get(mark) is not None]
    address = str(system.unstrip_protocol(info["name"]))
    if address.startswith("file://"):  # the same file as by its plain path
        address = str(Path(address.removeprefix("file://")).resolve())
    return FoundFile(
        name=name, address=address, num_bytes=int(info.get("size") or 0), changed=" ".join(marks or [address]), **kind
    )
