"""Verbs of other programs, each with the command here, of a table: verbs.json, an answer beside its verbs."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from lmtrain.storage import foreign_json

TABLE: Final = Path(__file__).with_name("verbs.json")


@cache
def called_verbs() -> Mapping[str, str]:
    """Return the answer to each verb."""
    return {verb: answer for answer, verbs in foreign_json.read(TABLE).items() for verb in verbs.split()}
