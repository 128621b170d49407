"""The files behind a person's paths: files, folders and globs, here or at any address known to fsspec."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from data_pipelines.sources.addresses import find_remote, is_address
from data_pipelines.sources.base import Skipped
from data_pipelines.sources.compression import is_text, without_compression
from data_pipelines.sources.found_file import FoundFile
from data_pipelines.sources.local_files import find_local
from lmtrain.errors import DataError

LISTED = 5  # kinds of files left out


@dataclass(frozen=True)
class FoundFiles:
    """The files read, and the number of others in the same folders, by suffix or by reason."""

    files: tuple[FoundFile, ...]
    left_out: Counter[str]


def find_files(paths: Iterable[str], *, suffixes: Collection[str], key: str = "source.paths") -> FoundFiles:
    """Return the files behind the paths of the setting `key`, each once, sorted by name.

    A file or a glob takes whatever it names; a folder is searched for files with these suffixes, and on this machine
    for text without a suffix, such as LICENSE or GPL-2.1; hidden files are left out.

    Raises:
        DataError: A path does not exist, or there is no such file in any of them.
        EnvironmentProblem: An address cannot be reached.
    """
    found: dict[str, FoundFile] = {}
    left_out: Counter[str] = Counter()
    for named in paths:
        for file in find_remote(named) if is_address(named) else find_local(named, key=key):
            reason = file.reason if isinstance(file, Skipped) else _why_left_out(file, suffixes)
            if reason is None and isinstance(file, FoundFile):
                is_again = found.setdefault(file.address, file) is not file
                reason = "links to files taken already" if is_again and file.is_searched_for else None
            if reason is not None:
                left_out[reason] += 1
    if not found:
        listed = list_counts(left_out) or "no file at all"
        rule = "Convert to text, or add to source.more_suffixes."
        raise DataError(f"{key}={list(paths)} holds no text file: {listed}. {rule}")
    return FoundFiles(tuple(sorted(found.values(), key=lambda file: (file.name, file.address))), left_out)


def list_counts(counts: Counter[str]) -> str:
    """Return "5 .pdf, 2 .jpg, 9 others": the five most common, and the rest."""
    listed = [f"{count:,} {what}" for what, count in counts.most_common(LISTED)]
    others = counts.total() - sum(count for _, count in counts.most_common(LISTED))
    return ", ".join([*listed, *([f"{others:,} others"] if others else [])])


def _why_left_out(file: FoundFile, suffixes: Collection[str]) -> str | None:
    suffix = without_compression(file.name).suffix.lower()
    if suffix in suffixes or not file.is_searched_for:
        return None
    if suffix and not suffix[1:].isdigit():  # the 1 of GPL-2.1 is a version
        return suffix
    if not file.is_local:
        return "without suffix"  # a look into each would be a request to the store
    return None if is_text(file) else "binary files without a suffix"
