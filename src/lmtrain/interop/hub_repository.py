"""Send a folder to a repository of the Hugging Face Hub in one commit: only changed files, and gone ones deleted.

The Hub keeps large files that arrived before a stop, so that the same command sends the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id
from huggingface_hub.utils.sha import git_hash

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage.hashed_folder import file_sha256

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
    """Make a repository equal to a folder; a new one is private unless `is_public`.

    Raises:
        EnvironmentProblem: The Hub does not answer, or refuses.
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
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    missing = {path: file for path, file in paths.items() if not _is_same(file, there.get(path))}
    gone = [path for path in there if path not in paths and path not in KEPT]
    operations: list[Any] = [CommitOperationAdd(path, file) for path, file in missing.items()]
    operations += [CommitOperationDelete(path) for path in gone]
    if operations:
        api.create_commit(name, operations, commit_message=message)
    num_bytes = sum(file.stat().st_size for file in missing.values())
    return Sent(num_sent=len(missing), num_bytes=num_bytes, num_there=len(paths) - len(missing))


def _listed(api: HfApi, name: str) -> Mapping[str, str]:
    """Return each file's sha256, or the git hash of a small one."""
    try:
        found: list[Any] = list(api.list_repo_tree(name, recursive=True))
    except (EntryNotFoundError, RevisionNotFoundError):  # nothing was ever sent
        return {}
    return {one.path: one.lfs.sha256 if one.lfs else one.blob_id for one in found if hasattr(one, "blob_id")}


def _is_same(file: Path, hash_there: str | None) -> bool:
    """Compare by git's hash of a small file (40 digits), or the sha256 of a large one."""
    if hash_there is None:
        return False
    return hash_there == (git_hash(file.read_bytes()) if len(hash_there) == 40 else file_sha256(file))
