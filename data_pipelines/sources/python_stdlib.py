"""The source code of the running Python's own standard library: real text on every machine, offline."""

import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final, final

from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.sources.find_files import fingerprint_files, walk
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.data.dataset_folder import notify
from lmtrain.data.text_files import FoundFile, Reading, local_file, read_text_parts
from lmtrain.errors import DataError

EXCLUDED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


@final
class PythonStandardLibrary(Source):
    """Each `.py` file of the standard library, without its tests and installed packages, sorted by path."""

    name = "python_stdlib"

    def __init__(self, *, folder: str | None = None) -> None:
        """Read a folder of Python files; None reads the running Python's standard library."""
        self._folder = Path(folder or sysconfig.get_path("stdlib"))

    def fingerprint(self) -> str:
        """Return a sha256 over every file's path and content."""
        return fingerprint_files(self._files)

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield each file under its path relative to the library."""
        reading = Reading()
        for number, file in enumerate(self._files, start=1):
            for name, text in read_text_parts(file, reading):
                yield Skipped(name, "not UTF-8 text") if text is None else Document(name, text)
            self.fraction_read = number / len(self._files)
        for note in reading.notes():
            notify(note)

    @cached_property
    def _files(self) -> tuple[FoundFile, ...]:
        paths = [path for path in walk(self._folder, excluded=EXCLUDED_FOLDERS) if path.suffix == ".py"]
        if not paths:
            raise DataError(f"source.folder={self._folder} has no .py file; name a folder that has, or leave it out.")
        files = [local_file(path, name=path.relative_to(self._folder).as_posix()) for path in paths]
        return tuple(sorted(files, key=lambda file: file.name))


PYTHON_STANDARD_LIBRARY_FACTS: Final = SourceFacts(has_conversations=False)
