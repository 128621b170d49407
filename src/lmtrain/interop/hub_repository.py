"""Send a folder to a repository of the Hugging Face Hub: only changed files, so a stopped push goes on.

Each commit is small; the manifest goes last, with the deletion of files gone from the folder: a repository
with files as in its manifest is whole.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage.hashed_folder import MANIFEST, file_sha256

FILES_A_COMMIT: Final = 50
BYTES_A_COMMIT: Final = 1_000_000_000
KEPT: Final = (".gitattributes",)  # the Hub's own
REFUSED: Final = (401, 403)
# The Hub's client has changed its library of HTTP twice: whichever it has, its errors share this class.
HTTP_PROBLEM: type[Exception] = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Files and bytes sent now, and those there already."""

    num_sent: int
    num_bytes: int
    num_there: int


def require_repository(name: str) -> str:
    """Return the token for a repository's name, OWNER/NAME.

    Raises:
        ConfigurationError: The name is not OWNER/NAME.
        EnvironmentProblem: No token is set.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as problem:
        raise ConfigurationError(f"{name} must be OWNER/NAME of a Hub repository ({problem}).") from problem
    if name.count("/") != 1:
        raise ConfigurationError(f"{name} has no owner; write OWNER/NAME.")
    token = get_token()
    if token is None:
        raise EnvironmentProblem("lmtrain push needs a token of the Hub: set HF_TOKEN, or log in with `hf auth login`.")
    return token


def send_folder(folder: Path, name: str, *, token: str, is_public: bool = False, message: str) -> Sent:
    """Make a repository equal to a folder with a manifest; a new one is private unless `is_public`.

    Raises:
        EnvironmentProblem: The Hub does not answer, or refuses; what was sent stays there, and is not sent again.
    """
    api = HfApi(token=token)
    try:
        api.create_repo(name, private=not is_public, exist_ok=True)
        return _send(api, folder, name, message)
    except HfHubHTTPError as problem:
        status = problem.response.status_code
        fix = "the token may not write there" if status in REFUSED else "the same command goes on from here"
        raise EnvironmentProblem(f"{name}: the Hub answered {status}; {fix}.") from problem
    except (HTTP_PROBLEM, OSError) as problem:
        raise EnvironmentProblem(
            f"{name}: the Hub cannot be reached ({type(problem).__name__}); the same command goes on from here."
        ) from problem


def _send(api: HfApi, folder: Path, name: str, message: str) -> Sent:
    there = _listed(api, name)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    paths = {path.relative_to(folder).as_posix(): path for path in files}
    missing = {path: file for path, file in paths.items() if not _is_same(file, there.get(path))}
    others = {path: file for path, file in missing.items() if path != MANIFEST}
    for group in _groups(others):
        _commit(api, name, [CommitOperationAdd(path, others[path]) for path in group], message)
    gone = [path for path in there if path not in paths and path not in KEPT]
    if missing or gone:
        last: list[Any] = [CommitOperationDelete(path) for path in gone]
        _commit(api, name, [*last, CommitOperationAdd(MANIFEST, paths[MANIFEST])], message)
    num_bytes = sum(file.stat().st_size for file in missing.values())
    return Sent(num_sent=len(missing), num_bytes=num_bytes, num_there=len(paths) - len(missing))


def _commit(api: HfApi, name: str, operations: Sequence[Any], message: str) -> None:
    api.create_commit(name, operations, commit_message=message)


def _listed(api: HfApi, name: str) -> dict[str, str]:
    """Return each file's sha256, or the git hash of a small one."""
    try:
        found: Iterator[Any] = iter(list(api.list_repo_tree(name, recursive=True)))
    except (EntryNotFoundError, RevisionNotFoundError):  # nothing was ever sent
        return {}
    return {one.path: one.lfs.sha256 if one.lfs else one.blob_id for one in found if hasattr(one, "blob_id")}


def _is_same(file: Path, hash_there: str | None) -> bool:
    if hash_there is None:
        return False
    is_sha256 = len(hash_there) == hashlib.sha256().digest_size * 2
    return hash_there == (file_sha256(file) if is_sha256 else git_hash(file))


def git_hash(file: Path) -> str:
    """Return git's hash of a file's content."""
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _groups(files: Mapping[str, Path]) -> Iterator[list[str]]:
    """Yield names for one commit each."""
    group: list[str] = []
    size = 0
    for name, file in files.items():
        num_bytes = file.stat().st_size
        if group and (len(group) >= FILES_A_COMMIT or size + num_bytes > BYTES_A_COMMIT):
            yield group
            group, size = [], 0
        group.append(name)
        size += num_bytes
    if group:
        yield group
