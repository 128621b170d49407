"""A Hugging Face dataset, from the hub or from a local folder in one of its layouts, through `datasets`."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast, final

from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.sources.columns import column_of
from data_pipelines.sources.hub_rows import Wanted, find_dataset, num_rows
from data_pipelines.sources.local_files import fingerprint_files, local_file, walk
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.storage.bounded_memory import bounded_memory
from lmtrain.storage.damage import one_line

SHUFFLE_BUFFER_DOCUMENTS = 10_000


@final
class HuggingFaceDataset(Source):
    """The rows of one split of a dataset, in its own order or shuffled; one column holds the text or the messages."""

    def __init__(
        self,
        *,
        name: str,
        config: str | None = None,
        split: str = "train",
        text_column: str | None = None,
        messages_column: str | None = None,
        revision: str | None = None,
        shuffle_seed: int | None = None,
        shuffle_buffer_documents: int | None = None,
        max_documents: int | None = None,
        streaming: bool = True,
        cache: str | None = None,
    ) -> None:
        """Name a dataset of the hub or a local folder; None takes its own config, its newest revision, its own order.

        `text_column` (None: `text`) or `messages_column` holds the document. Streaming reads rows as they arrive, and
        shuffles them in a buffer of `shuffle_buffer_documents` (None: 10,000); without it the whole is first downloaded
        into the folder `cache`, and shuffled as a whole.

        Raises:
            ConfigurationError: Contradicting settings, or a number below 1.
        """
        _require_positive(max_documents=max_documents, shuffle_buffer_documents=shuffle_buffer_documents)
        if shuffle_buffer_documents is not None and (shuffle_seed is None or not streaming):
            msg = f"source.shuffle_buffer_documents={shuffle_buffer_documents} has no effect without "
            missing = "source.streaming=true" if shuffle_seed is not None else "source.shuffle_seed=..."
            raise ConfigurationError(f"{msg}{missing}; set that, or leave it out.")
        if streaming and "[" in split:
            msg = f"source.split={split} is a slice, which needs source.streaming=false"
            raise ConfigurationError(f"{msg}; or take source.max_documents of the whole split.")
        self._wanted = Wanted(name=name, config=config, split=split, revision=revision)
        self._column = column_of(text_column=text_column, messages_column=messages_column)
        self._shuffle = (shuffle_seed, shuffle_buffer_documents or SHUFFLE_BUFFER_DOCUMENTS)
        self._max_documents = max_documents
        self._streaming, self._cache = streaming, cache
        self._name = (Path(name).resolve() if self._wanted.is_local else Path(name)).name
        self._num_read, self._num_rows = 0, max_documents

    @property
    def name(self) -> str:
        """Return the dataset's own name, fit for a folder."""
        return self._name

    @property
    def has_conversations(self) -> bool:
        """Tell whether the column holds messages."""
        return self._column.is_messages

    @property
    def read_once(self) -> str:
        """Return the rule against streaming a data set of the hub."""
        return "source.streaming=false" if self._streaming and not self._wanted.is_local else ""

    def fingerprint(self) -> str:
        """Return a sha256 over the arguments, and over the files of a local folder; the hub is not asked."""
        wanted = self._wanted
        folder = Path(wanted.name)
        files = sorted(walk(folder)) if wanted.is_local else []
        found = [local_file(path, name=path.relative_to(folder).as_posix()) for path in files]
        place = "" if wanted.is_local else wanted.name
        order = [*self._shuffle, self._streaming] if self._shuffle[0] is not None else []
        which = [place, wanted.config, wanted.split, wanted.revision, self._max_documents, order]
        identity = [*which, self._column.name, self._column.is_messages]
        return hashlib.sha256(f"{json.dumps(identity)} {fingerprint_files(found)}".encode()).hexdigest()

    def check(self) -> None:
        """Look for the dataset, its config, its split and the column.

        Raises:
            DataError: There is none such; each names the right ones.
            EnvironmentProblem: The hub cannot be reached.
        """
        self._open()

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield each row's document under its number in the order of reading.

        Raises:
            DataError: As `check` does, or a row that does not fit the others.
            EnvironmentProblem: The hub cannot be reached, or broke off.
        """
        self._num_read = 0
        for row in self._worded(self._open()):
            self._num_read += 1
            yield self._column.document(row, f"{self._name}:{self._num_read - 1}")
            if self._num_read == self._max_documents:
                return

    @property
    def fraction_read(self) -> float | None:
        """Return how many of the rows are read, where the dataset says how many it has."""
        return min(self._num_read / self._num_rows, 1.0) if self._num_rows else None

    def _open(self) -> Iterable[dict[str, Any]]:
        builder = find_dataset(self._wanted, cache=self._cache)
        known = num_rows(builder, self._wanted.split)
        self._num_rows = min(filter(None, (known, self._max_documents)), default=None)
        if self._streaming:
            rows = builder.as_streaming_dataset(split=self._wanted.split)
        else:
            self._prepare(builder)
            rows = builder.as_dataset(split=self._wanted.split)
        columns = rows.column_names or list(next(iter(self._worded(rows)), {}))
        if columns:
            self._column.require_in(columns, table=self._wanted.name)
            rows = rows.select_columns([self._column.name])
        seed, buffer_documents = self._shuffle
        if seed is None:
            return cast("Iterable[dict[str, Any]]", rows)
        return rows.shuffle(seed=seed, buffer_size=buffer_documents) if self._streaming else rows.shuffle(seed=seed)

    def _worded(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        waiting = iter(rows)
        try:
            while True:
                # What is prepared is mapped, and counts as addresses; a stream decodes what a stranger's file asks for.
                with bounded_memory() if self._streaming else nullcontext():
                    row = next(waiting, None)
                if row is None:
                    return
                yield row
        except Exception as problem:  # of pyarrow, of `datasets`, of the network's package
            raise self._refusal(problem, f"after row {self._num_read:,}") from problem

    def _prepare(self, builder: Any) -> None:
        try:
            with bounded_memory():
                builder.download_and_prepare()
        except Exception as problem:  # as above; `datasets` names the reason as its cause
            raise self._refusal(problem.__cause__ or problem, "at all") from problem

    def _refusal(self, problem: BaseException, where: str) -> DataError | EnvironmentProblem:
        told = f"source.name={self._wanted.name} cannot be read {where}: {one_line(problem)}"
        if self._wanted.is_local or isinstance(problem, (ValueError, MemoryError)):
            return DataError(f"{told}. Correct the file, or read it with source=files, which skips bad rows.")
        return EnvironmentProblem(f"{told}. The same command goes on from there.")


def _require_positive(**settings: int | None) -> None:
    for name, value in settings.items():
        if value is not None and value < 1:
            raise ConfigurationError(f"source.{name}={value} must be positive; leave it out for what null takes.")


def hugging_face_dataset_facts(*, messages_column: str | None = None) -> SourceFacts:
    """Tell whether documents are lists of messages."""
    return SourceFacts.of_column(messages_column)
