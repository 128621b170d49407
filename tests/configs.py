"""Configs of a few words, read as a command reads them."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.paths import group_folders
from lmtrain.run.run_config import RunConfig, read_config


def option_files() -> list[Path]:
    """Return the files of all options of a run, sorted by group."""
    return [file for folder in group_folders() for file in sorted(folder.glob("*.yaml"))]


def config_of(*words: str) -> RunConfig:
    """Compose and read the config of some overrides; nothing of it is checked against what it builds."""
    return read_config(compose_config([*words]))


@cache
def default_config() -> RunConfig:
    """Return the reading of a config without words, composed once."""
    return config_of("tokenizer=byte_level", "logger=none")


def config_with(**fields: Any) -> RunConfig:
    """Return the default reading with other fields; `values` stay the default's unless they are among them."""
    return replace(default_config(), **fields)
