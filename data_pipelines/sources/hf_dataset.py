"""A Hugging Face dataset, from the hub or from a local folder in one of its layouts, through `datasets`."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.sources.files import FoundFile, fingerprint_files, walk
from lmtrain.errors import DataError, EnvironmentProblem, suggest


@final
class HuggingFaceDataset(Source):
    """The rows of one split of a dataset, in its own order; one column holds the text."""

    def __init__(
        self,
        *,
        dataset: str,
        config: str | None = None,
        split: str = "train",
        text_column: str = "text",
        revision: str | None = None,
        max_documents: int | None = None,
        streaming: bool = True,
        cache: str | None = None,
    ) -> None:
        """Name a dataset of the hub or a local folder; None for `config` and `revision` takes the dataset's default.

        Streaming reads rows as they arrive; without it the whole is first downloaded into the folder `cache`.
        """
        self._dataset = dataset
        self._text_column = text_column
        self._max_documents = max_documents
        self._what = {"name": config, "split": split, "revision": revision}
        self._how = {"streaming": streaming, "cache_dir": cache}

    @property
    def name(self) -> str:
        """Return the dataset's own name, fit for a folder."""
        return Path(self._dataset).name

    def fingerprint(self) -> str:
        """Return a sha256 over the arguments, and over the files of a local folder; the hub is not asked."""
        folder = Path(self._dataset)
        files = sorted(walk(folder)) if folder.is_dir() else []
        found = [FoundFile(path.relative_to(folder).as_posix(), path, is_named=False) for path in files]
        identity = [self._dataset if not files else "", self._what, self._text_column, self._max_documents]
        return hashlib.sha256(f"{json.dumps(identity, sort_keys=True)} {fingerprint_files(found)}".encode()).hexdigest()

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield each row's text under its number.

        Raises:
            DataError: No such dataset, config, split or column; each names the right ones.
            EnvironmentProblem: The hub cannot be reached.
        """
        rows = self._load()
        self._require_column(rows)
        for number, row in enumerate(rows):
            if number == self._max_documents:
                return
            text = row[self._text_column]
            row_id = f"{self.name}:{number}"
            yield Document(row_id, text) if isinstance(text, str) else Skipped(row_id, "null text")

    def _load(self) -> Any:
        import datasets  # here, because it takes about a second

        load: Any = datasets.load_dataset
        try:
            return load(self._dataset, **self._what, **self._how)
        except ConnectionError as problem:
            msg = f"source.dataset={self._dataset} cannot be reached: {problem}. Name a local folder, or go online."
            raise EnvironmentProblem(msg) from problem
        except (ValueError, FileNotFoundError) as problem:  # a wrong config, split or name, with the right ones listed
            raise DataError(f"source.dataset={self._dataset} cannot be loaded: {problem}") from problem

    def _require_column(self, rows: Any) -> None:
        columns: list[str] = rows.column_names or list(next(iter(rows), {}))
        if self._text_column not in columns:
            known = f"it has {', '.join(columns)}.{suggest(self._text_column, columns)}"
            raise DataError(f"source.text_column={self._text_column} is not a column of {self._dataset}: {known}")
