"""A person's own text: files, folders and globs, here or at an address, of plain text, code, JSON and tables."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, final

from data_pipelines.sources.base import Document, OnBadRow, Skipped, Source, document_of, require_good
from data_pipelines.sources.find_files import FoundFiles, find_files, fingerprint_files, list_counts
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.data.dataset_folder import notify
from lmtrain.data.row_files import SUFFIXES, Delimited, Quoting, TableFormat, columns_of, read_rows
from lmtrain.data.row_shapes import RowShape, shape_of
from lmtrain.data.text_files import FoundFile, Reading, read_text_parts
from lmtrain.errors import ConfigurationError, DataError

Format = Literal["text"] | TableFormat

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


class FileSource(Source):
    """The documents of files: each file of text is one, each row of a table is one; sorted by name."""

    def __init__(
        self,
        *,
        paths: str | Sequence[str],
        validation_paths: str | Sequence[str],
        shape: RowShape,
        format: Format | None,  # noqa: A002 (the name of the option)
        dialect: Delimited,
        on_bad_row: OnBadRow,
        more_suffixes: Sequence[str] = (),
    ) -> None:
        self._paths = (paths,) if isinstance(paths, str) else tuple(paths)
        self._validation_paths = (validation_paths,) if isinstance(validation_paths, str) else tuple(validation_paths)
        self._shape, self._dialect = shape, dialect
        self._format: Format | None = format
        self._on_bad_row: OnBadRow = on_bad_row
        self._suffixes = frozenset(suffix.lower() for suffix in (*TEXT_SUFFIXES, *SUFFIXES, *more_suffixes))
        self._has_reported = False
        self.has_conversations, self.names_validation = shape.kind != "text", bool(self._validation_paths)
        if dialect.delimiter is not None and len(dialect.delimiter) != 1:
            raise ConfigurationError(f"source.delimiter: must be one character, got {dialect.delimiter!r}.")

    def fingerprint(self) -> str:
        """Return a sha256 over every file's name and content, and the columns read."""
        tables = {self._format_of(file) for file in self._found.files}
        dialect = [self._dialect.delimiter, self._dialect.quoting]
        # Version 2 reads tab-separated values without quotes.
        how = [*self._shape.identity(), self._format, *(["tsv 2"] if "tsv" in tables else []),
               *([dialect] if any(dialect) else [])]  # fmt: skip
        train = [file for file in self._found.files if not file.is_held_out]
        held_out = [file for file in self._found.files if file.is_held_out]
        identity = f"{fingerprint_files(train)} {json.dumps(how)}"
        return f"{identity} {fingerprint_files(held_out)}" if held_out else identity

    def check(self) -> None:
        """Check the columns of the first file of each kind; plain text has none."""
        first: dict[Format, FoundFile] = {}
        for file in self._found.files:
            first.setdefault(self._format_of(file), file)
        for kind, file in first.items():
            if kind != "text" and (columns := columns_of(file, kind, dialect=self._dialect)) is not None:
                self._shape.require_in(columns, table=file.address)
        if (self._shape.columns or self.has_conversations) and not first.keys() - {"text"}:
            rule = "source.text_column, messages_column, columns and conversations have no effect on text files"
            raise ConfigurationError(f"{rule}; name JSON, parquet or csv files, or set source.format.")

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield the documents.

        Raises:
            DataError: A file is damaged, lacks the column, or was named itself and is binary or empty.
        """
        if self._found.left_out and not self._has_reported:
            self._has_reported = True  # the source may be read more than once
            notify(f"  files left out: {list_counts(self._found.left_out)} (source.more_suffixes takes more)")
        yield from self._read_all(self._found.files)

    def num_pieces(self) -> int:
        """Return the number of files."""
        return len(self._found.files)

    def piece(self, index: int) -> Iterator[Document | Skipped]:
        """Yield the documents of one file."""
        return self._read_all((self._found.files[index],))

    def _read_all(self, files: Sequence[FoundFile]) -> Iterator[Document | Skipped]:
        reading, num_bytes = Reading(), max(sum(file.num_bytes for file in files), 1)
        self.fraction_read = 0.0
        for file in files:
            is_empty = True
            for item in self._items(file, reading):
                document = require_good(item, self._on_bad_row)
                if isinstance(document, Document):
                    is_empty = is_empty and not (document.text.strip() or document.messages)
                    document = replace(document, split="validation") if file.is_held_out else document
                else:
                    is_empty = False
                yield document
            if is_empty and file.is_named:
                raise DataError(f"source.paths: {file.address} is empty; put text into it, or leave it out.")
            self.fraction_read += file.num_bytes / num_bytes
        for note in reading.notes():
            notify(note)

    def _items(self, file: FoundFile, reading: Reading) -> Iterator[Document | Skipped]:
        kind = self._format_of(file)
        if kind == "text":
            for name, text in read_text_parts(file, reading):
                yield Skipped(name, "not UTF-8 text") if text is None else Document(name, text)
            return
        for row_id, row in read_rows(file, kind, self._shape.wanted, reading, dialect=self._dialect):
            if isinstance(row, str):
                yield Skipped(row_id, row)
            else:
                yield document_of(row_id, self._shape.content(row, reading))

    def _format_of(self, file: FoundFile) -> Format:
        return self._format or SUFFIXES.get(file.plain_name.suffix.lower(), "text")

    @cached_property
    def _found(self) -> FoundFiles:
        """Return the files for validation, then the others."""
        found = self._without_other_json(find_files(self._paths, suffixes=self._suffixes))
        if not self._validation_paths:
            return found
        held_out = find_files(self._validation_paths, suffixes=self._suffixes, key="source.validation_paths")
        held_out = self._without_other_json(held_out)
        first = {file.address: replace(file, is_held_out=True) for file in held_out.files}
        others = [file for file in found.files if file.address not in first]
        if both := len(found.files) - len(others):
            notify(f"  files in both source.paths and source.validation_paths, used for validation only: {both:,}")
        return FoundFiles((*first.values(), *others), found.left_out + held_out.left_out)

    def _without_other_json(self, found: FoundFiles) -> FoundFiles:
        """Leave out a folder's JSON files that do not hold rows of this shape, such as a program's settings."""
        kept = [file for file in found.files if not self._is_other_json(file)]
        if len(kept) in (0, len(found.files)):
            return found  # where none is kept, all are refused with the columns that they have
        return FoundFiles(tuple(kept), found.left_out + Counter({".json": len(found.files) - len(kept)}))

    def _is_other_json(self, file: FoundFile) -> bool:
        if not (file.is_searched_for and file.is_local and file.plain_name.suffix.lower() == ".json"):
            return False
        try:
            self._shape.require_in(columns_of(file, "json_lines", dialect=self._dialect) or (), table=file.address)
        except DataError:
            return True
        return False


@final
class Files(FileSource):
    """Text and code files whole, and the rows of tables; sorted by name."""

    name = "files"

    def __init__(
        self,
        *,
        paths: str | Sequence[str],
        validation_paths: str | Sequence[str] = (),
        text_column: str | None = None,
        messages_column: str | None = None,
        columns: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        conversations: bool = False,
        format: Format | None = None,  # noqa: A002 (the name of the option)
        delimiter: str | None = None,
        quoting: Quoting | None = None,
        on_bad_row: OnBadRow = "skip",
        more_suffixes: Sequence[str] = (),
    ) -> None:
        """Name files, folders, globs or addresses; each may be compressed with gzip, bzip2, xz or zstd.

        `text_column` (None: `text`) or `messages_column` is the document in a row of a table; `columns` names the
        columns of a conversation's parts (messages, system, history, prompt, input, completion), `roles` maps other
        names of roles to ours; `conversations` takes a conversation's usual columns where none is named. `format` None
        goes by each file's suffix; `delimiter` and `quoting` None by csv or tsv. A row without a document is skipped
        and counted, or with `on_bad_row` "error" refused. A folder is searched for text, source code and tables, and
        for `more_suffixes`. The documents of `validation_paths` are for validation, all others train; a file in both is
        for validation.
        """
        super().__init__(
            paths=paths,
            validation_paths=validation_paths,
            shape=shape_of(
                text_column=text_column,
                messages_column=messages_column,
                columns=columns,
                roles=roles,
                conversations=conversations,
            ),
            format=format,
            dialect=Delimited(delimiter=delimiter, quoting=quoting),
            on_bad_row=on_bad_row,
            more_suffixes=more_suffixes,
        )


files_facts = SourceFacts.of_columns
