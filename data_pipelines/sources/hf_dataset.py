"""A Hugging Face dataset, from the hub or from a local folder in one of its layouts, through `datasets`."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast, final

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError

from data_pipelines.sources.base import Document, OnBadRow, Skipped, Source, document_of, require_good
from data_pipelines.sources.find_files import fingerprint_files, walk
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.accounting.options.ranges import require_count
from lmtrain.data.dataset_folder import notify
from lmtrain.data.row_files import without_nulls
from lmtrain.data.row_shapes import shape_of
from lmtrain.data.text_files import Reading, local_file
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem, suggest, suggest_path
from lmtrain.storage.bounded_memory import bounded_memory
from lmtrain.storage.damage import one_line

SHUFFLE_BUFFER_DOCUMENTS = 10_000
REACH_SECONDS = 10.0
NAME_KEY = "source.name"


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
        max_documents: int | None = None,
        streaming: bool = True,
        cache: str | None = None,
    ) -> None:
        """Name a dataset of the hub or a local folder; None takes its default config, newest revision and own order.

        Columns and roles are those of `source=files`. Streaming reads rows as they arrive, and shuffles them in a
        buffer of 10,000; without it the whole is first downloaded into the folder `cache`, and shuffled as a whole.
        """
        require_count("source.max_documents", max_documents)
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
        self._shuffle_seed = shuffle_seed
        self._max_documents = max_documents
        self._on_bad_row: OnBadRow = on_bad_row
        self._streaming, self._cache = streaming, cache
        self.name = (Path(name).resolve() if self._wanted.is_local else Path(name)).name
        self.has_conversations = self._shape.kind != "text"
        self._num_read, self._num_rows = 0, max_documents

    def fingerprint(self) -> str:
        """Return a sha256 over the arguments, the version of `datasets`, and the files of a local folder."""
        wanted, folder = self._wanted, Path(self._wanted.name)
        files = sorted(walk(folder)) if wanted.is_local else []
        found = [local_file(path, name=path.relative_to(folder).as_posix()) for path in files]
        place = "" if wanted.is_local else wanted.name
        order = [self._shuffle_seed, self._streaming] if self._shuffle_seed is not None else []
        which = [place, wanted.config, wanted.split, wanted.revision, self._max_documents, order]
        identity = [*which, *self._shape.identity(), version("datasets")]
        return hashlib.sha256(f"{json.dumps(identity)} {fingerprint_files(found)}".encode()).hexdigest()

    def check(self) -> None:
        """Find the dataset, its config, its split and the columns."""
        self._open()

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield each row's document under its number in the order of reading."""
        self._num_read, reading = 0, Reading()
        for row in read_rows(self._wanted, self._open(), streaming=self._streaming):
            self._num_read += 1
            content = self._shape.content({name: without_nulls(value) for name, value in row.items()}, reading)
            yield require_good(document_of(f"{self.name}:{self._num_read - 1}", content), self._on_bad_row)
            self.fraction_read = min(self._num_read / self._num_rows, 1.0) if self._num_rows else None
            if self._num_read == self._max_documents:
                break
        for note in reading.notes():
            notify(note)

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
                raise _unreadable(self._wanted, 0, problem) from problem
            rows = builder.as_dataset(split=self._wanted.split)
        columns = rows.column_names or list(next(read_rows(self._wanted, rows, streaming=self._streaming), {}))
        if columns:
            self._shape.require_in(columns, table=self._wanted.name)
            rows = rows.select_columns([name for name in columns if name in self._shape.wanted])
        if self._shuffle_seed is None:
            return cast("Iterable[dict[str, Any]]", rows)
        buffer: dict[str, Any] = {"buffer_size": SHUFFLE_BUFFER_DOCUMENTS} if self._streaming else {}
        return rows.shuffle(seed=self._shuffle_seed, **buffer)


hugging_face_dataset_facts = SourceFacts.of_columns


def read_rows(wanted: Wanted, rows: Iterable[dict[str, Any]], *, streaming: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the rows of a dataset; a failure of its packages or its files is one line."""
    waiting, num_read = iter(rows), 0
    try:
        while True:
            # Downloaded rows are mapped, and count as addresses; a stream decodes whatever a hostile file asks for.
            with bounded_memory() if streaming else nullcontext():
                row = next(waiting, None)
            if row is None:
                return
            num_read += 1
            yield row
    except Exception as problem:  # of pyarrow, of `datasets`, of the network's package
        raise _unreadable(wanted, num_read, problem) from problem


def _unreadable(wanted: Wanted, num_read: int, problem: BaseException) -> DataError | EnvironmentProblem:
    reason = problem.__cause__ or problem  # `datasets` names its reason as its cause
    what = f"{wanted.typed} cannot be read after row {num_read:,}: {one_line(reason)}"
    if wanted.is_local or isinstance(reason, (ValueError, MemoryError)):
        return DataError(f"{what}. Correct the file, or read it with source=files, which skips bad rows.")
    return EnvironmentProblem(f"{what}. The same command continues from there.")


def find_dataset(wanted: Wanted, *, cache: str | None) -> Any:
    """Return the builder of a dataset with the wanted config and split."""
    import datasets
    from datasets.exceptions import DatasetsError

    if not huggingface_hub.constants.HF_HUB_OFFLINE and not wanted.is_local:
        _require_hub(wanted)
    revision = None if wanted.is_local else wanted.revision
    try:
        builder: Any = datasets.load_dataset_builder(wanted.name, wanted.config, cache_dir=cache, revision=revision)
    except ConnectionError as problem:
        raise _unreachable(wanted, problem) from problem
    except (ValueError, OSError, DatasetsError) as problem:
        near = suggest_path(Path(wanted.name))
        raise DataError(f"{wanted.typed} cannot be loaded: {one_line(problem).rstrip('.')}.{near}") from problem
    split, known = wanted.split.partition("[")[0], builder.config.data_files or builder.info.splits or ()
    if known and split not in known:
        key = "source.split" if wanted.key == NAME_KEY else f"{wanted.typed}: split"
        raise DataError(
            f"{key}: must be one of {', '.join(known)} of {wanted.name}, got {split}.{suggest(split, known)}"
        )
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
