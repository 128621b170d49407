"""Find a tokenizer by name: a folder or file here, else a model of the Hugging Face hub, downloaded once."""

from pathlib import Path

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem, suggest_path
from lmtrain.tokenizers.base import TOKENIZER_FILE

MORE_FILES = ("tokenizer_config.json", "special_tokens_map.json")  # they name the end-of-text token
ANSWER_SECONDS = 10


def find_tokenizer(name: str, *, revision: str | None = None, key: str = "tokenizer.name") -> Path:
    """Return the path of a local tokenizer, or of the hub's `name`, from the cache or downloaded now.

    `key` is the typed key of the name.

    Raises:
        ConfigurationError: The name is not on the hub.
        DataError: It is an absent path, or the model has no `tokenizer.json`.
        EnvironmentProblem: The hub does not answer, or asks for more.
    """
    typed = f"{key}={name}"
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith((".json", "/")):
        msg = f"{typed} does not exist here"
        raise DataError(f"{msg}; name a folder, a {TOKENIZER_FILE}, or a model of the hub.{suggest_path(path)}")
    return _cached(name, revision, typed) or _download(name, revision, typed)


def _cached(name: str, revision: str | None, typed: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, TOKENIZER_FILE, revision=revision)
    except HFValidationError as problem:
        raise ConfigurationError(f"{typed} is neither here nor a name that the hub can have.") from problem
    return Path(path).parent if isinstance(path, str) else None


def _download(name: str, revision: str | None, typed: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    _require_answer(name, revision, typed)
    try:
        path = Path(hf_hub_download(name, TOKENIZER_FILE, revision=revision))
    except GatedRepoError as problem:
        msg = f"{typed} wants its licence accepted: do so on its page, then type `hf auth login`."
        raise EnvironmentProblem(msg) from problem
    except RepositoryNotFoundError as problem:
        raise ConfigurationError(f"{typed} is no folder here and no model on the hub.") from problem
    except EntryNotFoundError as problem:
        fix = (
            "save it with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER) and name the folder"
        )
        raise DataError(f"{typed} has no {TOKENIZER_FILE} on the hub; {fix}.") from problem
    except (HfHubHTTPError, OSError) as problem:
        raise EnvironmentProblem(_unreachable(typed)) from problem
    for file in MORE_FILES:
        try:
            hf_hub_download(name, file, revision=revision)
        except (EntryNotFoundError, HfHubHTTPError, OSError):  # not every model has them
            continue
    return path.parent


def _require_answer(name: str, revision: str | None, typed: str) -> None:
    """Ask once: the client itself would try for half a minute, with a warning each time."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import get_session

    try:
        get_session().head(hf_hub_url(name, TOKENIZER_FILE, revision=revision), timeout=ANSWER_SECONDS)
    except Exception as problem:  # of whichever HTTP library the client uses
        raise EnvironmentProblem(_unreachable(typed)) from problem


def _unreachable(typed: str) -> str:
    return f"{typed} is no folder here and the hub cannot be reached; go online once, or name a folder."
