"""Find a dataset and its rows through `datasets`, and refuse a wrong name before anything is read."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem, suggest, suggest_path

REACH_SECONDS = 10.0  # `datasets` itself gives up on the network after about 24 seconds
NAME_KEY = "source.name"
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One split of one config of a dataset: of the hub, or in a local folder; `key` is the setting with its name."""

    name: str
    config: str | None
    split: str
    revision: str | None
    key: str = NAME_KEY

    @property
    def typed(self) -> str:
        """Return the setting as it was typed."""
        return f"{self.key}={self.name}"

    @property
    def is_local(self) -> bool:
        """Tell whether the name is a folder here."""
        return Path(self.name).is_dir()


def find_dataset(wanted: Wanted, *, cache: str | None) -> Any:
    """Return the builder of a dataset with the wanted config and split.

    Raises:
        DataError: There is no such dataset, config or split; the message lists the existing ones.
        EnvironmentProblem: The hub cannot be reached.
    """
    import datasets
    from datasets.exceptions import DatasetsError

    load: Any = datasets.load_dataset_builder
    list_configs: Any = datasets.get_dataset_config_names
    find_default: Any = datasets.get_dataset_default_config_name
    revision = wanted.revision if wanted.is_local else _commit_of(wanted)
    try:
        if wanted.is_local or not huggingface_hub.constants.HF_HUB_OFFLINE:
            configs: list[str] = list_configs(wanted.name, revision=revision)
            _require_config(wanted, configs, find_default(wanted.name, revision=revision))
        builder = load(wanted.name, name=wanted.config, revision=revision, cache_dir=cache)
    except ConnectionError as problem:
        raise _unreachable(wanted, problem) from problem
    except DataError:
        raise
    except (ValueError, OSError, DatasetsError) as problem:
        raise DataError(f"{wanted.typed} cannot be loaded: {_one_line(problem)}") from problem
    _require("split", _base(wanted.split), split_names(builder), wanted)
    return builder


def split_names(builder: Any) -> list[str]:
    """Return the splits of a dataset."""
    return list(builder.config.data_files or builder.info.splits or ())


def num_rows(builder: Any, split: str) -> int | None:
    """Return how many rows a split has, where the dataset says so."""
    splits = builder.info.splits
    return int(splits[split].num_examples) or None if splits and split in splits else None


def _commit_of(wanted: Wanted) -> str | None:
    """Return the hub's present commit, for reading one state of the dataset."""
    if not HUB_NAME.fullmatch(wanted.name):
        rule = "is neither a folder here nor OWNER/NAME of a dataset on the hub"
        raise DataError(f"{wanted.typed} {rule}.{suggest_path(Path(wanted.name))}")
    if huggingface_hub.constants.HF_HUB_OFFLINE:  # an earlier download may do
        return wanted.revision
    try:
        return huggingface_hub.HfApi().dataset_info(wanted.name, revision=wanted.revision, timeout=REACH_SECONDS).sha
    except RevisionNotFoundError as problem:
        rule = f"source.revision={wanted.revision} is no branch, tag or commit of {wanted.name}"
        raise DataError(f"{rule}; leave it out for the newest.") from problem
    except RepositoryNotFoundError as problem:
        rule = "is no dataset of the hub that you may read, and no folder here"
        raise DataError(f"{wanted.typed} {rule}; is it private or gated? Then set HF_TOKEN.") from problem
    except HfHubHTTPError as problem:
        raise EnvironmentProblem(f"{wanted.typed}: the hub answers {_one_line(problem)}") from problem
    except Exception as problem:  # whatever the network's package raises
        raise _unreachable(wanted, problem) from problem


def _unreachable(wanted: Wanted, problem: Exception) -> EnvironmentProblem:
    msg = f"{wanted.typed} is no folder here, and the hub cannot be reached: {_one_line(problem)}"
    fix = "name a local folder, go online, or set HF_HUB_OFFLINE=1 to read what source.streaming=false downloaded"
    return EnvironmentProblem(f"{msg}; {fix}.{suggest_path(Path(wanted.name))}")


def _require_config(wanted: Wanted, configs: list[str], default: str | None) -> None:
    if wanted.config is not None:
        _require("config", wanted.config, configs, wanted)
    elif len(configs) > 1 and default is None:
        raise DataError(f"source.config has no value and {wanted.name} has several: {', '.join(configs)}; choose one.")


def _require(what: str, name: str, known: Collection[str], wanted: Wanted) -> None:
    if known and name not in known:
        listed, is_typed = ", ".join(known), wanted.key == NAME_KEY
        asked = f"source.{what}={name}" if is_typed else f"{wanted.typed}: {what}={name}"
        lacks_readme = not is_typed and wanted.is_local and not (Path(wanted.name) / "README.md").is_file()
        fix = " Copy its README.md too: that names configs and splits." if lacks_readme else suggest(name, known)
        raise DataError(f"{asked} is no {what} of {wanted.name}: it has {listed}.{fix}")


def _base(split: str) -> str:
    """Return the split of a slice such as train[:10%].

    Raises:
        ConfigurationError: Several are added; a source is one.
    """
    if "+" in split:
        raise ConfigurationError(f"source.split={split} adds splits; a source reads one.")
    return split.partition("[")[0]


def _one_line(problem: Exception) -> str:
    return (" ".join(str(problem).split()) or type(problem).__name__).rstrip(".")
