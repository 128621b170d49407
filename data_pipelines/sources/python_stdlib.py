"""The source code of the running Python's own standard library: real text that every machine has, offline."""

import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import final

from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.sources.files import FoundFile, fingerprint_files, read_text, walk
from lmtrain.errors import DataError

EXCLUDED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


@final
class PythonStandardLibrary(Source):
    """Each `.py` file of the standard library, without its tests and installed packages, sorted by path."""

    def __init__(self, *, folder: str | None = None) -> None:
        """Read a folder of Python files; None reads the running Python's standard library."""
        self._folder = Path(folder or sysconfig.get_path("stdlib"))

    @property
    def name(self) -> str:
        """Return `python_stdlib`."""
        return "python_stdlib"

    def fingerprint(self) -> str:
        """Return a sha256 over every file's path and content."""
        return fingerprint_files(self._files)

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield each file under its path relative to the library."""
        for file in self._files:
            try:
                yield Document(id=file.name, text=read_text(file.path))
            except DataError:
                yield Skipped(id=file.name, reason="not UTF-8 text")

    @cached_property
    def _files(self) -> tuple[FoundFile, ...]:
        paths = [path for path in walk(self._folder, excluded=EXCLUDED_FOLDERS) if path.suffix == ".py"]
        if not paths:
            raise DataError(f"source.folder={self._folder} has no .py file; name a folder that has, or leave it out.")
        files = [FoundFile(path.relative_to(self._folder).as_posix(), path, is_named=False) for path in paths]
        return tuple(sorted(files, key=lambda file: file.name))
