"""A person's own text: files, folders and globs of plain text, source code and JSON lines."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import final

from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.sources.files import FoundFile, find_files, fingerprint_files, read_text
from data_pipelines.sources.json_lines import documents_of_lines
from lmtrain.errors import ConfigurationError, DataError

TEXT_SUFFIXES = (
    ".txt", ".md", ".markdown", ".rst", ".org", ".tex", ".jsonl", ".py", ".pyi", ".js", ".ts", ".tsx", ".jsx", ".c",
    ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".kt", ".go", ".rs", ".rb", ".php", ".swift", ".scala", ".hs", ".ml",
    ".lua", ".jl", ".r", ".sh", ".sql", ".html", ".css", ".xml", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".srt",
)  # fmt: skip


@final
class TextFiles(Source):
    """Each file is a document, each line of a `.jsonl` file is one; sorted by name."""

    def __init__(
        self, *, paths: str | Sequence[str], text_field: str = "text", more_suffixes: Sequence[str] = ()
    ) -> None:
        """Name files, folders or globs; `text_field` is the key of a `.jsonl` line's text.

        A folder is searched for files with the suffixes of text and source code, and with `more_suffixes`.

        Raises:
            ConfigurationError: No path at all.
        """
        self._paths = (paths,) if isinstance(paths, str) else tuple(paths)
        self._text_field = text_field
        self._suffixes = frozenset(suffix.lower() for suffix in (*TEXT_SUFFIXES, *more_suffixes))
        if not self._paths:
            raise ConfigurationError("source.paths=[] names no text; name files or folders: 'source.paths=[my/notes]'.")

    @property
    def name(self) -> str:
        """Return `text_files`."""
        return "text_files"

    def fingerprint(self) -> str:
        """Return a sha256 over every file's name and content, and the field that is read."""
        return f"{fingerprint_files(self._files)} {self._text_field}"

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield the documents.

        Raises:
            DataError: A file that was named itself is binary or empty; a JSON line is broken or lacks its text.
        """
        for file in self._files:
            try:
                text = read_text(file.path)
            except DataError:
                if file.is_named:
                    raise
                yield Skipped(id=file.name, reason="not UTF-8 text")
                continue
            if file.is_named and not text.strip():
                raise DataError(f"source.paths names {file.path}, which is empty; put text into it or leave it out.")
            if file.path.suffix == ".jsonl":
                yield from documents_of_lines(text, name=file.name, place=str(file.path), text_field=self._text_field)
            else:
                yield Document(id=file.name, text=text)

    @cached_property
    def _files(self) -> tuple[FoundFile, ...]:
        return find_files(self._paths, suffixes=self._suffixes)
