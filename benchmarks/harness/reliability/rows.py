"""Each fault with its promise and its test, and other systems' words with their source; from rows.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Row:
    """A fault, a promise, a test file below `tests`, and the name of one of its tests."""

    fault: str
    promise: str
    file: str
    test: str


@dataclass(frozen=True)
class Words:
    """What other systems say or test of a subject, as their own sources have it; absent: nothing was found."""

    subject: str
    ours: str
    others: dict[str, str]


SYSTEMS: Final = ("torchtitan", "OLMo-core", "Composer", "NVRx", "Lightning", "nanochat")

_FILE: Final = json.loads(Path(__file__).with_suffix(".json").read_text())
ROWS: Final = tuple(Row(**row) for row in _FILE["rows"])
WORDS: Final = tuple(Words(**words) for words in _FILE["words"])
