"""The public mixture of nanochat's and picollm's fine-tuning: SmolTalk, an identity, MMLU and GSM8K.

https://github.com/karpathy/nanochat, scripts/chat_sft.py: which data sets, and how often each. MMLU
(arXiv:2009.03300) and GSM8K (arXiv:2110.14168) are read in the layout of their repositories through `datasets`, from
the hub or from a local folder.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, final

from data_pipelines.sources.base import Document, Skipped, Source, asked
from data_pipelines.sources.find_files import fingerprint_files, walk
from data_pipelines.sources.hf_dataset import Wanted, find_dataset, read_rows
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.accounting.quantities import format_count
from lmtrain.data.dataset_folder import notify
from lmtrain.data.text_files import local_file
from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.tokenizers.question_forms import choice_question, letters_of

VERSION: Final = 1  # raised when the same settings come to make other conversations
CALCULATION: Final = re.compile(r"<<.*?>>")  # GSM8K's notes for a calculator
Messages = tuple[Mapping[str, Any], ...]
Items = Iterable[Document | Skipped]


@final
class ChatMixture(Source):
    """Conversations of several data sets, each a number of times; a repeated one keeps its name, and so its split."""

    name = "chat_mixture"
    has_conversations = True

    def __init__(
        self,
        *,
        smoltalk: str = "HuggingFaceTB/smol-smoltalk",
        mmlu: str = "cais/mmlu",
        gsm8k: str = "openai/gsm8k",
        identity: str | None = None,
        smoltalk_epochs: int = 1,
        identity_epochs: int = 2,
        mmlu_epochs: int = 3,
        gsm8k_epochs: int = 4,
    ) -> None:
        """Name data sets of the hub or local folders; `identity` is a file of conversations, left out where it is None.

        0 epochs leave a data set out.
        """
        self._counts = {
            "smoltalk_epochs": smoltalk_epochs,
            "identity_epochs": identity_epochs,
            "mmlu_epochs": mmlu_epochs,
            "gsm8k_epochs": gsm8k_epochs,
        }
        self._names = {"smoltalk": smoltalk, "mmlu": mmlu, "gsm8k": gsm8k}
        self._identity = identity
        if identity is not None and not Path(identity).is_file():
            raise DataError(f"source.identity: must be a file of this machine, got {identity}.")

    def fingerprint(self) -> str:
        """Return a sha256 over the settings and the contents of local files; the hub is not asked."""
        folders = [Path(name) for name in self._names.values() if Path(name).is_dir()]
        files = [
            local_file(path, name=f"{folder.name}/{path.relative_to(folder).as_posix()}")
            for folder in folders
            for path in sorted(walk(folder))
        ]
        named = [name for name in self._names.values() if not Path(name).is_dir()]
        kept = Path(self._identity).read_text(encoding="utf-8") if self._identity else None
        identity = json.dumps([VERSION, named, self._counts, kept])
        return hashlib.sha256(f"{identity} {fingerprint_files(files)}".encode()).hexdigest()

    def check(self) -> None:
        """Find the data sets, their configs and splits."""
        for label in self._names:
            if self._counts[f"{label}_epochs"]:
                find_dataset(self._wanted(label), cache=None)

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield every part as often as asked, and report the rows of each."""
        counts: list[str] = []
        for label, epochs, rows in self._parts():
            num_rows = 0
            for row in chain.from_iterable(rows() for _ in range(epochs)):
                num_rows += isinstance(row, Document)
                yield row
            counts.append(f"{label} {format_count(num_rows, 'row')}")
        notify(f"chat_mixture: {', '.join(counts)}{'' if self._identity else '; source.identity not set'}")

    def _parts(self) -> Iterator[tuple[str, int, Callable[[], Items]]]:
        """Yield each part's label, its epochs, and its rows."""
        for label in self._names:
            yield label, self._counts[f"{label}_epochs"], partial(_rows_of, self._wanted(label), label=label)
        if self._identity:
            yield "identity", self._counts["identity_epochs"], partial(_lines_of, Path(self._identity))

    def _wanted(self, label: str) -> Wanted:
        config, split, _ = PLACES[label]
        return Wanted(name=self._names[label], config=config, split=split, revision=None, key=f"source.{label}")


def of_choices(row: Mapping[str, Any]) -> Messages:
    """Return a question of several choices and its letter as the answer."""
    choices = list(row["choices"])
    return asked(choice_question(row["question"], choices), dict(enumerate(letters_of(choices)))[row["answer"]])


def of_messages(row: Mapping[str, Any]) -> Messages:
    """Return the messages of a row."""
    return tuple(row["messages"])


# Of each data set: its config, its split, and its rows as conversations.
PLACES: Final[Mapping[str, tuple[str | None, str, Callable[[Mapping[str, Any]], Messages]]]] = {
    "smoltalk": (None, "train", of_messages),
    "mmlu": ("all", "auxiliary_train", of_choices),
    "gsm8k": ("main", "train", lambda row: asked(row["question"], CALCULATION.sub("", row["answer"]))),
}


def _rows_of(wanted: Wanted, *, label: str) -> Items:
    """Yield the rows of a data set as conversations."""
    rows = find_dataset(wanted, cache=None).as_streaming_dataset(split=wanted.split)
    for number, row in enumerate(read_rows(wanted, rows)):
        yield _document(f"{label}:{number}", PLACES[label][2], row)


def _document(name: str, read: Callable[[Any], Messages], row: Any) -> Document | Skipped:
    try:
        return Document(name, "", messages=read(row))
    except (LookupError, TypeError):
        return Skipped(name, "other columns")


def _lines_of(path: Path) -> Items:
    """Yield the conversations of a file: a list of messages a line, or an object with them under `messages`."""
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                content = foreign_json.parse(line)
            except ValueError as problem:
                raise DataError(
                    f"{path}:{number} is not JSON ({problem}); give a list of messages per line."
                ) from problem
            row = content if isinstance(content, dict) else {"messages": content}
            yield _document(f"identity:{number}", of_messages, row)


CHAT_MIXTURE_FACTS: Final = SourceFacts(has_conversations=True)
