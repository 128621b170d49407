"""Preference pairs: a prompt, a preferred answer and another one, from the rows of files."""

from collections.abc import Mapping, Sequence
from typing import Final, final

from data_pipelines.sources.base import OnBadRow
from data_pipelines.sources.files import FileSource, Format
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.data.row_files import Delimited, Quoting
from lmtrain.data.row_shapes import RowShape


@final
class PreferencePairs(FileSource):
    """Rows with prompt, chosen and rejected: texts, lists of messages, or whole conversations."""

    name = "preference_pairs"

    def __init__(
        self,
        *,
        paths: str | Sequence[str],
        columns: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        format: Format | None = None,  # noqa: A002 (the name of the option)
        delimiter: str | None = None,
        quoting: Quoting | None = None,
        on_bad_row: OnBadRow = "skip",
    ) -> None:
        """Name files, as for `source=files`; `columns` names other columns for prompt, chosen and rejected."""
        super().__init__(
            paths=paths,
            validation_paths=(),
            shape=RowShape("pair", dict(columns or {}), dict(roles or {})),
            format=format,
            dialect=Delimited(delimiter=delimiter, quoting=quoting),
            on_bad_row=on_bad_row,
        )


PREFERENCE_PAIRS_FACTS: Final = SourceFacts(has_conversations=True, has_pairs=True)
