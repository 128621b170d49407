"""The former name of the whole check of a config, for tests that have not changed yet."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmtrain.run.run_config import RunConfig, read_config


def check_config(values: Mapping[str, Any], *, allowed: Sequence[str]) -> RunConfig:
    """Return a config with every node checked against its code."""
    return read_config(values, allowed=allowed).checked()
