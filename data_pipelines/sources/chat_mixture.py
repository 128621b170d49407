"""The public mixture of nanochat's and picollm's fine-tuning: SmolTalk, an identity, MMLU, GSM8K, and spelling.

https://github.com/karpathy/nanochat, scripts/chat_sft.py: which data sets, how often each, how many made rows. Each is
read through `datasets`, from the hub or from a local folder in the layout of its repository.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, final

from data_pipelines.progress import tell
from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.sources.chat_rows import WORD, Messages, counted, of_calculation, of_choices, of_messages, spelled
from data_pipelines.sources.hub_rows import Wanted, find_dataset
from data_pipelines.sources.local_files import fingerprint_files, local_file, walk
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.storage import foreign_json

VERSION: Final = 1  # raised when the same settings come to make other conversations


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One data set of the mixture, read `epochs` times."""

    label: str
    epochs: int
    rows: Callable[[], Iterable[Document | Skipped]]


@final
class ChatMixture(Source):
    """Conversations of several data sets, each so many times; a repeated one keeps its name, and with it its split."""

    def __init__(
        self,
        *,
        smoltalk: str = "HuggingFaceTB/smol-smoltalk",
        mmlu: str = "cais/mmlu",
        gsm8k: str = "openai/gsm8k",
        identity: str | None = None,
        words: str | None = None,
        smoltalk_epochs: int = 1,
        identity_epochs: int = 2,
        mmlu_epochs: int = 3,
        gsm8k_epochs: int = 4,
        spelling_rows: int = 200_000,
        counting_rows: int = 80_000,
        seed: int = 0,
    ) -> None:
        """Name data sets of the hub or local folders; `identity` is a file of conversations, `words` one of words.

        Without those two files their rows are left out, which is told. 0 epochs leave a data set out.

        Raises:
            ConfigurationError: A number is negative, or nothing is left.
            DataError: A file is missing.
        """
        counts = {
            "smoltalk_epochs": smoltalk_epochs,
            "identity_epochs": identity_epochs,
            "mmlu_epochs": mmlu_epochs,
            "gsm8k_epochs": gsm8k_epochs,
            "spelling_rows": spelling_rows,
            "counting_rows": counting_rows,
        }
        _require(counts, identity=identity, words=words)
        self._names = {"smoltalk": smoltalk, "mmlu": mmlu, "gsm8k": gsm8k}
        self._identity, self._words, self._counts, self._seed = identity, words, counts, seed
        self._rows: dict[str, int] = {}

    @property
    def name(self) -> str:
        """Return `chat_mixture`."""
        return "chat_mixture"

    @property
    def has_conversations(self) -> bool:
        """Return true."""
        return True

    def fingerprint(self) -> str:
        """Return a sha256 over the settings and the contents of local files; the hub is not asked."""
        folders = [Path(name) for name in self._names.values() if Path(name).is_dir()]
        files = [
            local_file(path, name=f"{folder.name}/{path.relative_to(folder).as_posix()}")
            for folder in folders
            for path in sorted(walk(folder))
        ]
        named = [name for name in self._names.values() if not Path(name).is_dir()]
        kept = [Path(path).read_text(encoding="utf-8") for path in (self._identity, self._words) if path]
        identity = json.dumps([VERSION, named, self._counts, self._seed, kept])
        return hashlib.sha256(f"{identity} {fingerprint_files(files)}".encode()).hexdigest()

    def check(self) -> None:
        """Look for the data sets, their configs and splits.

        Raises:
            DataError: There is none such.
            EnvironmentProblem: The hub cannot be reached.
        """
        for wanted, epochs in self._wanted():
            if epochs:
                find_dataset(wanted, cache=None)

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield every part so many times, and tell the rows of each.

        Raises:
            DataError: As `check` does, or a damaged file.
            EnvironmentProblem: The hub cannot be reached, or broke off.
        """
        told: list[str] = []
        for part in self._parts():
            num_rows = 0
            for _ in range(part.epochs):
                num_rows = 0
                for row in part.rows():
                    num_rows += isinstance(row, Document)
                    yield row
            told.append(f"{part.label} {format_count(num_rows, 'row')} x {part.epochs}")
            self._rows[part.label] = num_rows * part.epochs
        tell(
            f"chat_mixture: {', '.join(told)}; {format_count(sum(self._rows.values()), 'row')} in all{self._missing()}"
        )

    def _parts(self) -> Iterator[_Part]:
        rows_of = {"smoltalk": of_messages, "mmlu": of_choices, "gsm8k": of_calculation}
        for (wanted, epochs), (label, conversation) in zip(self._wanted(), rows_of.items(), strict=True):
            if epochs:
                rows = partial(_rows_of, wanted, label=label, conversation=conversation)
                yield _Part(label=label, epochs=epochs, rows=rows)
        if self._identity and self._counts["identity_epochs"]:
            rows = partial(_lines_of, Path(self._identity))
            yield _Part(label="identity", epochs=self._counts["identity_epochs"], rows=rows)
        for label, make in (("spelling", spelled), ("counting", counted)):
            if self._words and (num_rows := self._counts[f"{label}_rows"]):
                made = partial(make, self._known_words, num_rows=num_rows, seed=self._seed)
                yield _Part(label=label, epochs=1, rows=made)

    def _wanted(self) -> list[tuple[Wanted, int]]:
        of_part = {"smoltalk": (None, "train"), "mmlu": ("all", "auxiliary_train"), "gsm8k": ("main", "train")}
        return [
            (
                Wanted(name=self._names[label], config=config, split=split, revision=None, key=f"source.{label}"),
                self._counts[f"{label}_epochs"],
            )
            for label, (config, split) in of_part.items()
        ]

    @cached_property
    def _known_words(self) -> list[str]:
        """Return the file's words of small letters.

        Raises:
            DataError: There is none.
        """
        lines = Path(str(self._words)).read_text(encoding="utf-8").split()
        found = [word for word in lines if WORD.fullmatch(word)]
        if not found:
            raise DataError(f"source.words={self._words} has no word of three small letters or more, one a line.")
        return found

    def _missing(self) -> str:
        names = [
            name for name, path in (("source.identity", self._identity), ("source.words", self._words)) if not path
        ]
        return f"; none of {' and '.join(names)}, which are not set" if names else ""


def _rows_of(
    wanted: Wanted, *, label: str, conversation: Callable[[Mapping[str, Any]], Messages | str]
) -> Iterator[Document | Skipped]:
    """Yield the rows of a data set as conversations."""
    rows = find_dataset(wanted, cache=None).as_streaming_dataset(split=wanted.split)
    number = -1
    try:
        for number, row in enumerate(rows):
            made = conversation(row)
            name = f"{label}:{number}"
            yield Skipped(name, made) if isinstance(made, str) else Document(name, "", messages=made)
    except (OSError, ValueError) as problem:
        where = f"source.{label}={wanted.name} cannot be read after row {number + 1:,}"
        kind = DataError if wanted.is_local or isinstance(problem, ValueError) else EnvironmentProblem
        raise kind(f"{where}: {' '.join(str(problem).split())}.") from problem


def _lines_of(path: Path) -> Iterator[Document | Skipped]:
    """Yield the conversations of a file: a list of messages a line, or an object with them under `messages`.

    Raises:
        DataError: A line is no JSON.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                content = foreign_json.parse(line)
            except ValueError as problem:
                raise DataError(f"{path}:{number} is no JSON ({problem}); a line is a list of messages.") from problem
            made = of_messages(content if isinstance(content, Mapping) else {"messages": content})
            name = f"identity:{number}"
            yield Skipped(name, made) if isinstance(made, str) else Document(name, "", messages=made)


def _require(counts: Mapping[str, int], *, identity: str | None, words: str | None) -> None:
    for name, count in counts.items():
        if count < 0:
            raise ConfigurationError(f"source.{name}={count} is negative; nearest valid: 0, which leaves it out.")
    for name, path in (("identity", identity), ("words", words)):
        if path is not None and not Path(path).is_file():
            raise DataError(f"source.{name}={path} is no file; name one of this machine, or leave it out.")
    given = {"identity_epochs": identity, "spelling_rows": words, "counting_rows": words}
    if not any(count for name, count in counts.items() if given.get(name, "hub")):
        raise ConfigurationError("source=chat_mixture has 0 epochs of every data set; nearest valid: gsm8k_epochs=4.")


def chat_mixture_facts() -> SourceFacts:
    """Tell whether documents are lists of messages."""
    return SourceFacts(has_conversations=True)
