"""Files at addresses such as s3://, gs://, hf:// and https://, through fsspec."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, cast

import fsspec

from data_pipelines.sources.found_file import FoundFile
from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, DataError, EnvironmentProblem, suggest

# The marks of a changed file, at one kind of store or another.
CHANGE_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "sha256", "blob_id", "generation", "mtime", "LastModified",
                "last_modified", "modified", "created")  # fmt: skip


def is_address(path: str) -> bool:
    """Tell whether a path names its protocol; anything else is a path of this machine."""
    return "://" in path


def find_remote(named: str) -> Iterator[FoundFile]:
    """Yield the files of an address: itself, a glob's matches, or a folder's without hidden ones.

    Raises:
        ConfigurationError: There is no such protocol.
        DataError: There is no such file.
        EnvironmentProblem: A package is missing, or the address cannot be reached.
    """
    with worded(named):
        system, path = cast("tuple[Any, str]", fsspec.core.url_to_fs(named))
        is_page = named.startswith(("http://", "https://"))
        if any(sign in path for sign in "*?["):
            found: dict[str, Any] = system.glob(path, detail=True)
            yield from (_found(system, info, name=file.lstrip("/")) for file, info in _files(found))
        elif is_page or system.isfile(path):
            yield _found(system, system.info(path), name=PurePosixPath(path).name, is_named=True)
            return
        elif system.isdir(path):
            root = PurePosixPath(path.rstrip("/"))
            for file, info in _files(system.find(path, detail=True)):
                inside = file.lstrip("/").removeprefix(str(root).lstrip("/")).lstrip("/")
                if not any(part.startswith(".") for part in inside.split("/")):
                    yield _found(system, info, name=f"{root.name}/{inside}", is_searched_for=True)
            return
        else:
            found = {}
    if not found:
        raise DataError(f"source.paths: {named} names no file there.")


@contextmanager
def worded(address: str) -> Generator[None, None, None]:
    """Word the exceptions of a store's own package in one line; each has its own."""
    try:
        yield
    except LMTRAIN_ERRORS:
        raise
    except ImportError as problem:
        msg = f"source.paths: {address} needs a package that is not installed: {problem}."
        raise EnvironmentProblem(msg) from problem
    except FileNotFoundError as problem:
        if isinstance(problem.__cause__, OSError):  # a web server that was not reached
            raise EnvironmentProblem(f"source.paths: {address} cannot be reached: {problem.__cause__}.") from problem
        raise DataError(f"source.paths: {address} names no file there.") from problem
    except Exception as problem:
        protocol, known = address.partition("://")[0], fsspec.available_protocols()
        if protocol.rpartition("::")[2] not in known:
            msg = f"source.paths: {address} has an unknown protocol {protocol}://"
            raise ConfigurationError(f"{msg}; usual: s3, gs, hf, https, file.{suggest(protocol, known)}") from problem
        why = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise EnvironmentProblem(f"source.paths: {address} cannot be reached: {why}.") from problem


def _files(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(path, info) for path, info in sorted(found.items()) if info.get("type") == "file"]


def _found(system: Any, info: Mapping[str, Any], *, name: str, **kind: bool) -> FoundFile:
    marks = [f"{mark}={info[mark]}" for mark in CHANGE_MARKS if info.get(mark) is not None]
    address = str(system.unstrip_protocol(info["name"]))
    if address.startswith("file://"):  # the same file as by its plain path
        address = str(Path(address.removeprefix("file://")).resolve())
    return FoundFile(
        name=name, address=address, num_bytes=int(info.get("size") or 0), changed=" ".join(marks or [address]), **kind
    )
