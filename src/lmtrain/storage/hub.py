"""Downloads from the Hugging Face Hub: each failure of its client as one line about the typed name."""

from collections.abc import Generator
from contextlib import contextmanager

from lmtrain.errors import ConfigurationError, EnvironmentProblem


@contextmanager
def asking_hub(typed: str) -> Generator[None]:
    """Report errors of the Hub's client about `typed`, KEY=NAME; a missing file stays EntryNotFoundError.

    Raises:
        ConfigurationError: The Hub has no such model.
        EnvironmentProblem: The Hub does not answer, or the model's licence must be accepted first.
    """
    from huggingface_hub import errors

    unreachable = f"{typed} is not a folder here, and the Hub cannot be reached; go online once, or name a folder."
    try:
        yield
    except errors.GatedRepoError as problem:  # a kind of RepositoryNotFoundError
        fix = "accept its licence on its page, then run `hf auth login`"
        raise EnvironmentProblem(f"{typed} needs its licence accepted: {fix}.") from problem
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as problem:
        raise ConfigurationError(f"{typed} is neither a folder here nor a model on the Hub.") from problem
    except errors.LocalEntryNotFoundError as problem:
        raise EnvironmentProblem(unreachable) from problem
    except errors.EntryNotFoundError:
        raise
    except (errors.HfHubHTTPError, OSError) as problem:
        raise EnvironmentProblem(unreachable) from problem
