"""A Hugging Face dataset, from the hub or from a local folder in one of its layouts, through `datasets`."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast, final

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError

from data_pipelines.progress import tell
from data_pipelines.sources.base import Document, OnBadRow, Skipped, Source, document_of, require_good
from data_pipelines.sources.find_files import fingerprint_files, walk
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.data.row_files import without_nulls
from lmtrain.data.row_shapes import shape_of
from lmtrain.data.text_files import Reading, local_file
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem, suggest, suggest_path
from lmtrain.storage.bounded_memory import bounded_memory
from lmtrain.storage.damage import one_line

SHUFFLE_BUFFER_DOCUMENTS = 10_000
REACH_SECONDS = 10.0
NAME_KEY = "source.name"
FIRST_VERSION: Final = "5.2.0"  # of `datasets`, behind the fingerprints that do not name one


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
        """Return whether the name is a folder here."""
        return Path(self.name).is_dir()


@final
class HuggingFaceDataset(Source):
    """The rows of one split of a dataset, in its own order or shuffled."""

    def __init__(
        self,
        *,
        name: str,
        config: str | None = None,
        split: str = "train",
        text_column: str | None = None,
        messages_column: str | None = None,
        columns: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        conversations: bool = False,
        on_bad_row: OnBadRow = "skip",
        revision: str | None = None,
        shuffle_seed: int | None = None,
        shuffle_buffer_documents: int | None = None,
        max_documents: int | None = None,
        streaming: bool = True,
        cache: str | None = None,
    ) -> None:
        """Name a dataset of the hub or a local folder; None takes its default config, newest revision and own order.

        Columns and roles are those of `source=files`. Streaming reads rows as they arrive, and shuffles them in a
        buffer of `shuffle_buffer_documents` (None: 10,000); without it the whole is first downloaded into the folder
        `cache`, and shuffled as a whole.

        Raises:
            ConfigurationError: Contradicting settings, or a number below 1.
        """
        for key, value in (("max_documents", max_documents), ("shuffle_buffer_documents", shuffle_buffer_documents)):
            if value is not None and value < 1:
                raise ConfigurationError(f"source.{key}: must be at least 1, got {value}.")
        if shuffle_buffer_documents is not None and (shuffle_seed is None or not streaming):
            missing = "source.streaming=true" if shuffle_seed is not None else "source.shuffle_seed"
            raise ConfigurationError(f"source.shuffle_buffer_documents has no effect without {missing}; set that too.")
        if streaming and "[" in split:
            rule = "a slice needs source.streaming=false, or use source.max_documents"
            raise ConfigurationError(f"source.split: {rule}, got {split}.")
        self._wanted = Wanted(name=name, config=config, split=split, revision=revision)
        self._shape = shape_of(
            text_column=text_column,
            messages_column=messages_column,
            columns=columns,
            roles=roles,
            conversations=conversations,
        )
        self._shuffle = (shuffle_seed, shuffle_buffer_documents or SHUFFLE_BUFFER_DOCUMENTS)
        self._max_documents = max_documents
        self._on_bad_row: OnBadRow = on_bad_row
        self._streaming, self._cache = streaming, cache
        self.name = (Path(name).resolve() if self._wanted.is_local else Path(name)).name
        self.has_conversations = self._shape.kind != "text"
        self.read_once = "source.streaming=false" if streaming and not self._wanted.is_local else ""
        self._num_read, self._num_rows = 0, max_documents

    def fingerprint(self) -> str:
        """Return a sha256 over the arguments, the version of `datasets`, and the files of a local folder."""
        wanted, folder, library = self._wanted, Path(self._wanted.name), version("datasets")
        files = sorted(walk(folder)) if wanted.is_local else []
        found = [local_file(path, name=path.relative_to(folder).as_posix()) for path in files]
        place = "" if wanted.is_local else wanted.name
        order = [*self._shuffle, self._streaming] if self._shuffle[0] is not None else []
        which = [place, wanted.config, wanted.split, wanted.revision, self._max_documents, order]
        identity = [*which, *self._shape.identity(), *([library] if library != FIRST_VERSION else [])]
        return hashlib.sha256(f"{json.dumps(identity)} {fingerprint_files(found)}".encode()).hexdigest()

    def check(self) -> None:
        """Find the dataset, its config, its split and the columns.

        Raises:
            DataError: One is missing; the message lists the existing ones.
            EnvironmentProblem: The hub cannot be reached.
        """
        self._open()

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield each row's document under its number in the order of reading.

        Raises:
            DataError: As `check` does, or a row that does not fit the others.
            EnvironmentProblem: The hub cannot be reached, or the connection broke.
        """
        self._num_read, reading = 0, Reading()
        for row in self._read(self._open()):
            self._num_read += 1
            content = self._shape.content({name: without_nulls(value) for name, value in row.items()}, reading)
            yield require_good(document_of(f"{self.name}:{self._num_read - 1}", content), self._on_bad_row)
            self.fraction_read = min(self._num_read / self._num_rows, 1.0) if self._num_rows else None
            if self._num_read == self._max_documents:
                break
        for note in reading.notes():
            tell(note)

    def _open(self) -> Iterable[dict[str, Any]]:
        builder = find_dataset(self._wanted, cache=self._cache)
        splits = builder.info.splits
        known = int(splits[self._wanted.split].num_examples) if splits and self._wanted.split in splits else 0
        self._num_rows = min(filter(None, (known, self._max_documents)), default=None)
        if self._streaming:
            rows = builder.as_streaming_dataset(split=self._wanted.split)
        else:
            try:
                with bounded_memory():
                    builder.download_and_prepare()
            except Exception as problem:  # of pyarrow, of `datasets`, of the network's package
                raise self._unreadable(problem) from problem
            rows = builder.as_dataset(split=self._wanted.split)
        columns = rows.column_names or list(next(iter(self._read(rows)), {}))
        if columns:
            self._shape.require_in(columns, table=self._wanted.name)
            rows = rows.select_columns([name for name in columns if name in self._shape.wanted])
        seed, buffer_documents = self._shuffle
        if seed is None:
            return cast("Iterable[dict[str, Any]]", rows)
        return rows.shuffle(seed=seed, buffer_size=buffer_documents) if self._streaming else rows.shuffle(seed=seed)

    def _read(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        waiting = iter(rows)
        try:
            while True:
                # Downloaded rows are mapped, and count as addresses; a stream decodes whatever a hostile file asks for.
                with bounded_memory() if self._streaming else nullcontext():
                    row = next(waiting, None)
                if row is None:
                    return
                yield row
        except Exception as problem:  # of pyarrow, of `datasets`, of the network's package
            raise self._unreadable(problem) from problem

    def _unreadable(self, problem: BaseException) -> DataError | EnvironmentProblem:
        reason = problem.__cause__ or problem  # `datasets` names its reason as its cause
        what = f"source.name={self._wanted.name} cannot be read after row {self._num_read:,}: {one_line(reason)}"
        if self._wanted.is_local or isinstance(reason, (ValueError, MemoryError)):
            return DataError(f"{what}. Correct the file, or read it with source=files, which skips bad rows.")
        return EnvironmentProblem(f"{what}. The same command continues from there.")


def hugging_face_dataset_facts(
    *,
    text_column: str | None = None,
    messages_column: str | None = None,
    columns: Mapping[str, str] | None = None,
    conversations: bool = False,
) -> SourceFacts:
    """Describe whether documents are lists of messages."""
    return SourceFacts.of_columns(
        text_column=text_column, messages_column=messages_column, columns=columns, conversations=conversations
    )


def find_dataset(wanted: Wanted, *, cache: str | None) -> Any:
    """Return the builder of a dataset with the wanted config and split.

    Raises:
        DataError: The dataset, config or split does not exist; the message lists the existing ones.
        EnvironmentProblem: The hub cannot be reached.
    """
    import datasets
    from datasets.exceptions import DatasetsError

    if "+" in wanted.split:
        raise ConfigurationError(f"source.split: must be one split, got {wanted.split}.")
    is_online = not huggingface_hub.constants.HF_HUB_OFFLINE
    if is_online and not wanted.is_local:
        _require_hub(wanted)
    named: Any = {"path": wanted.name, "revision": None if wanted.is_local else wanted.revision}
    try:
        if wanted.is_local or is_online:  # an earlier download has one config
            _require_config(wanted, datasets.get_dataset_config_names(**named), **named)
        builder: Any = datasets.load_dataset_builder(name=wanted.config, cache_dir=cache, **named)
    except ConnectionError as problem:
        raise _unreachable(wanted, problem) from problem
    except DataError:
        raise
    except (ValueError, OSError, DatasetsError) as problem:
        near = suggest_path(Path(wanted.name))
        raise DataError(f"{wanted.typed} cannot be loaded: {one_line(problem).rstrip('.')}.{near}") from problem
    _require("split", wanted.split.partition("[")[0], builder.config.data_files or builder.info.splits or (), wanted)
    return builder


def _require_hub(wanted: Wanted) -> None:
    """Ask the hub once: `datasets` itself would try for half a minute."""
    try:
        huggingface_hub.HfApi().dataset_info(wanted.name, revision=wanted.revision, timeout=REACH_SECONDS)
    except (HfHubHTTPError, ValueError):
        return  # `datasets` says what is wrong
    except Exception as problem:  # of the network's package
        raise _unreachable(wanted, problem) from problem


def _unreachable(wanted: Wanted, problem: Exception) -> EnvironmentProblem:
    msg = f"{wanted.typed} is not a folder here, and the hub cannot be reached: {one_line(problem).rstrip('.')}"
    fix = "name a local folder, go online, or set HF_HUB_OFFLINE=1 to read what source.streaming=false downloaded"
    return EnvironmentProblem(f"{msg}; {fix}.{suggest_path(Path(wanted.name))}")


def _require_config(wanted: Wanted, configs: list[str], **named: Any) -> None:
    import datasets

    if wanted.config is not None:
        _require("config", wanted.config, configs, wanted)
    elif len(configs) > 1 and datasets.get_dataset_default_config_name(**named) is None:
        raise DataError(f"source.config: {wanted.name} has several: {', '.join(configs)}; set one.")


def _require(what: str, name: str, known: Collection[str], wanted: Wanted) -> None:
    if known and name not in known:
        key = f"source.{what}" if wanted.key == NAME_KEY else f"{wanted.typed}: {what}"
        raise DataError(f"{key}: must be one of {', '.join(known)} of {wanted.name}, got {name}.{suggest(name, known)}")
