"""A person's own text: files, folders and globs, here or at an address, of plain text, code, JSON lines and tables."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Literal, final

from data_pipelines.progress import tell
from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.sources.columns import Column, column_of
from data_pipelines.sources.compression import is_compressed, without_compression
from data_pipelines.sources.find_files import FoundFiles, find_files, list_counts
from data_pipelines.sources.formats.delimited import check_delimited, read_delimited
from data_pipelines.sources.formats.json_lines import check_json_lines, read_json_lines
from data_pipelines.sources.formats.parquet import check_parquet, read_parquet
from data_pipelines.sources.formats.plain_text import read_plain_text
from data_pipelines.sources.formats.reading import FileReading
from data_pipelines.sources.found_file import FoundFile
from data_pipelines.sources.local_files import Hashes, fingerprint_files
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.errors import ConfigurationError, DataError

Format = Literal["text", "json_lines", "csv", "tsv", "parquet"]

TEXT_SUFFIXES = (
    ".txt", ".text", ".md", ".markdown", ".rst", ".org", ".adoc", ".tex", ".srt", ".vtt", ".html", ".htm", ".xhtml",
    ".xml", ".css", ".scss", ".less", ".py", ".pyi", ".pyx", ".js", ".mjs", ".cjs", ".ts", ".tsx", ".jsx", ".vue",
    ".svelte", ".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".cu", ".cuh", ".cs", ".java", ".kt", ".kts",
    ".scala", ".groovy", ".gradle", ".go", ".rs", ".zig", ".nim", ".swift", ".m", ".mm", ".dart", ".rb", ".php",
    ".pl", ".pm", ".lua", ".jl", ".r", ".hs", ".ml", ".mli", ".fs", ".ex", ".exs", ".erl", ".clj", ".lisp", ".el",
    ".scm", ".rkt", ".f90", ".f95", ".pas", ".d", ".v", ".sv", ".vhd", ".sol", ".asm", ".s", ".sh", ".bash", ".zsh",
    ".fish", ".ps1", ".bat", ".sql", ".proto", ".tf", ".nix", ".cmake", ".mk", ".glsl", ".hlsl", ".wgsl", ".metal",
    ".toml", ".yaml", ".yml", ".ini", ".cfg", ".conf",
)  # fmt: skip
TABLE_SUFFIXES: dict[str, Format] = {
    ".jsonl": "json_lines", ".ndjson": "json_lines", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet",
}  # fmt: skip
CHECKS: dict[Format, Callable[[FoundFile, Column], None]] = {
    "json_lines": check_json_lines, "parquet": check_parquet,
    "csv": partial(check_delimited, delimiter=","), "tsv": partial(check_delimited, delimiter="\t"),
}  # fmt: skip
READERS: dict[Format, Callable[[FoundFile, Column, FileReading], Iterator[Document | Skipped]]] = {
    "json_lines": read_json_lines, "parquet": read_parquet,
    "csv": partial(read_delimited, delimiter=","), "tsv": partial(read_delimited, delimiter="\t"),
}  # fmt: skip


@final
class Files(Source):
    """Each file of text is a document, each row of a table is one; sorted by name."""

    def __init__(
        self,
        *,
        paths: str | Sequence[str],
        validation_paths: str | Sequence[str] = (),
        text_column: str | None = None,
        messages_column: str | None = None,
        format: Format | None = None,  # noqa: A002 (the word a person types)
        more_suffixes: Sequence[str] = (),
    ) -> None:
        """Name files, folders, globs or addresses; each may be compressed with gzip, bzip2, xz or zstd.

        `text_column` (None: `text`) or `messages_column` is the document in a row of a table. `format` None goes by
        each file's suffix. A folder is searched for text, source code and tables, and for `more_suffixes`. The
        documents of `validation_paths` are for validation, and all others train; a file in both is for validation.

        Raises:
            ConfigurationError: No path at all, or two columns.
        """
        self._paths = (paths,) if isinstance(paths, str) else tuple(paths)
        self._validation_paths = (validation_paths,) if isinstance(validation_paths, str) else tuple(validation_paths)
        self._column = column_of(text_column=text_column, messages_column=messages_column)
        self._names_column = text_column is not None or messages_column is not None
        self._format: Format | None = format
        self._suffixes = frozenset(suffix.lower() for suffix in (*TEXT_SUFFIXES, *TABLE_SUFFIXES, *more_suffixes))
        self._reading: FileReading | None = None
        self._hashes: Hashes = {}
        self._told = False
        if not self._paths:
            raise ConfigurationError("source.paths=[] names no text; name files or folders: 'source.paths=[my/notes]'.")

    @property
    def name(self) -> str:
        """Return `files`."""
        return "files"

    @property
    def has_conversations(self) -> bool:
        """Tell whether the column holds messages."""
        return self._column.is_messages

    def fingerprint(self) -> str:
        """Return a sha256 over every file's name and content, and the columns read."""
        how = json.dumps([self._column.name, self._column.is_messages, self._format])
        train = [file for file in self._found.files if not file.is_held_out]
        held_out = [file for file in self._found.files if file.is_held_out]
        identity = f"{fingerprint_files(train, known=self._hashes)} {how}"
        return f"{identity} {fingerprint_files(held_out, known=self._hashes)}" if held_out else identity

    def check(self) -> None:
        """Look for the column in the first file of each kind.

        Raises:
            DataError: It is not there; the message lists the existing columns.
            ConfigurationError: A file could be of several formats.
        """
        first: dict[Format, FoundFile] = {}
        for file in self._found.files:
            first.setdefault(self._format_of(file), file)
        for kind, file in first.items():
            if kind in CHECKS:
                CHECKS[kind](file, self._column)
        if self._names_column and not first.keys() & CHECKS.keys():
            msg = f"{self._column.key}={self._column.name} has no effect: source.paths names no table"
            raise ConfigurationError(f"{msg}; name JSON lines, parquet or csv files, or set source.format.")

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield the documents.

        Raises:
            DataError: A file is damaged, lacks the column, or was named itself and is binary or empty.
        """
        self._reading = reading = FileReading(total_bytes=sum(file.num_bytes for file in self._found.files))
        if self._found.left_out and not self._told:
            self._told = True  # a reading ahead needs no line of its own
            more = any(what.startswith(".") for what in self._found.left_out)
            others = f"{list_counts(self._found.left_out)}{' (source.more_suffixes takes more)' if more else ''}"
            tell(f"  files left out: {others}")
        yield from self._read_all(self._found.files, reading)

    @property
    def text_bytes(self) -> int | None:
        """Return the bytes of all files, None where one is compressed; those of a table are a little more than text."""
        files = self._found.files
        packed = any(is_compressed(file.name) or self._format_of(file) == "parquet" for file in files)
        return None if packed else sum(file.num_bytes for file in files)

    @property
    def names_validation(self) -> bool:
        """Tell whether there are `validation_paths`."""
        return bool(self._validation_paths)

    def num_pieces(self) -> int:
        """Return the number of files."""
        return len(self._found.files)

    def piece(self, index: int) -> Iterator[Document | Skipped]:
        """Yield the documents of one file."""
        file = self._found.files[index]
        return self._read_all((file,), FileReading(total_bytes=file.num_bytes))

    @property
    def fraction_read(self) -> float | None:
        """Return how many of the files' bytes are read."""
        return self._reading.fraction() if self._reading else None

    def _read_all(self, files: Sequence[FoundFile], reading: FileReading) -> Iterator[Document | Skipped]:
        for file in files:
            yield from self._read(file, reading)
        if note := reading.utf8.note():
            tell(note)

    def _read(self, file: FoundFile, reading: FileReading) -> Iterator[Document | Skipped]:
        kind = self._format_of(file)
        documents = read_plain_text(file, reading) if kind == "text" else READERS[kind](file, self._column, reading)
        is_empty = True
        for document in documents:
            is_empty = is_empty and isinstance(document, Document) and not (document.text.strip() or document.messages)
            is_held_out = file.is_held_out and isinstance(document, Document)
            yield replace(document, split="validation") if is_held_out else document
        if is_empty and file.is_named:
            raise DataError(f"source.paths names {file.address}, which is empty; put text into it or leave it out.")
        reading.leave_behind(file.num_bytes)

    def _format_of(self, file: FoundFile) -> Format:
        suffix = without_compression(file.name).suffix.lower()
        if self._format is not None:
            return self._format
        if suffix == ".json" and not file.is_searched_for:
            choice = "source.format=json_lines (an object a line) or source.format=text"
            raise ConfigurationError(f"source.paths names {file.address}: say {choice}.")
        return TABLE_SUFFIXES.get(suffix, "text")

    @cached_property
    def _found(self) -> FoundFiles:
        """Return the files for validation, then the others."""
        found = find_files(self._paths, suffixes=self._suffixes)
        if not self._validation_paths:
            return found
        held_out = find_files(self._validation_paths, suffixes=self._suffixes, key="source.validation_paths")
        first = {file.address: replace(file, is_held_out=True) for file in held_out.files}
        others = [file for file in found.files if file.address not in first]
        if both := len(found.files) - len(others):
            tell(f"  files in source.paths and source.validation_paths: {both:,}, for validation alone")
        return FoundFiles((*first.values(), *others), found.left_out + held_out.left_out)


def files_facts(*, messages_column: str | None = None) -> SourceFacts:
    """Tell whether documents are lists of messages."""
    return SourceFacts.of_column(messages_column)
