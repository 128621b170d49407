"""Each fault with its promise and its test, and other systems' words on it; from rows.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Row:
    """A fault, a promise, a test file below `tests`, and the name of one of its tests.

    `elsewhere` has the words of other systems on the fault, as their own sources and tests have it; one absent: nothing
    was found there.
    """

    fault: str
    promise: str
    file: str
    test: str
    elsewhere: dict[str, str]


SYSTEMS: Final = ("torchtitan", "OLMo-core", "Composer", "NVRx", "Lightning", "nanochat")

ROWS: Final = tuple(Row(**row) for row in json.loads(Path(__file__).with_suffix(".json").read_text())["rows"])
