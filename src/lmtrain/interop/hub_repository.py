"""Send a folder to a repository of the Hugging Face Hub in one commit: only changed files, and gone ones deleted.

The Hub keeps large files that arrived before a stop, so that the same command sends the rest.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import validate_repo_id

from lmtrain.errors import ConfigurationError, EnvironmentProblem

GIT_ATTRIBUTES: Final = ".gitattributes"  # the Hub's own file
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
    """Return the token for a repository's name, OWNER/NAME."""
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
    """Make a repository equal to a folder; a new one is private unless `is_public`."""
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
    before = _listed(api, name)
    api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, delete_patterns="*")
    after = _listed(api, name)
    sent = [path for path, file in after.items() if path not in before or file.blob_id != before[path].blob_id]
    num_there = len(after.keys() - {*sent, GIT_ATTRIBUTES})
    return Sent(num_sent=len(sent), num_bytes=sum(after[path].size for path in sent), num_there=num_there)


def _listed(api: HfApi, name: str) -> dict[str, RepoFile]:
    return {one.path: one for one in api.list_repo_tree(name, recursive=True) if isinstance(one, RepoFile)}
