"""Which files a person's paths stand for: files, folders and globs, here or at any address that fsspec knows."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from data_pipelines.sources.addresses import find_remote, is_address
from data_pipelines.sources.compression import without_compression
from data_pipelines.sources.found_file import FoundFile
from data_pipelines.sources.local_files import find_local
from lmtrain.errors import DataError


@dataclass(frozen=True)
class FoundFiles:
    """The files that are read, and how many others lie in the same folders, by suffix."""

    files: tuple[FoundFile, ...]
    left_out: Counter[str]


def find_files(paths: Iterable[str], *, suffixes: Collection[str]) -> FoundFiles:
    """Return the files that paths stand for, each once, sorted by name.

    A file or a glob takes whatever it names; a folder is searched for files with these suffixes, hidden ones left out.

    Raises:
        DataError: A path does not exist, or there is no such file in any of them.
        EnvironmentProblem: An address cannot be reached.
    """
    found: dict[str, FoundFile] = {}
    left_out: Counter[str] = Counter()
    for named in paths:
        for file in find_remote(named) if is_address(named) else find_local(named):
            suffix = without_compression(file.name).suffix.lower()
            if suffix in suffixes or not file.is_searched_for:
                found.setdefault(file.address, file)
            else:
                left_out[suffix or "without suffix"] += 1
    if not found:
        listed = list_counts(left_out) or "no file at all"
        rule = "Convert to text, or add to source.more_suffixes."
        raise DataError(f"source.paths={list(paths)} holds no text file: {listed}. {rule}")
    return FoundFiles(tuple(sorted(found.values(), key=lambda file: (file.name, file.address))), left_out)


def list_counts(counts: Counter[str]) -> str:
    """Return "5 .pdf, 2 .jpg": the five most common."""
    return ", ".join(f"{count:,} {what}" for what, count in counts.most_common(5))
