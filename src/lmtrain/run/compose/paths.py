"""Where the configuration lives: `conf/` next to the sources, or the copy inside the installed wheel; and its keys."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import lmtrain

# Groups of commands and of Hydra itself, not of a run.
OTHERS: Final = frozenset({"pipeline", "hydra"})
MANY_OPTIONS: Final = frozenset({"callbacks", "experiment", "debug"})  # groups of which several options make one config
SHORT_KEYS: Final = {"tags": "run.tags"}
# Keys below these are in no file: people name them.
NAMED_BY_PEOPLE: Final = ("data.sources.", "optimizer.lr_multipliers.", "cluster.environment.")


def group_folders(conf: Path | None = None) -> list[Path]:
    """Return the folders of a run's groups of options, sorted by name."""
    folders = (conf or conf_folder()).iterdir()
    return sorted(path for path in folders if path.is_dir() and path.name not in OTHERS)


def is_key_of_training(name: str) -> bool:
    """Return whether a name is a group of a run's options, or a key of the entry config."""
    entry = (conf_folder() / "train.yaml").read_text()
    keys = re.findall(r"^(\w+):", entry, flags=re.MULTILINE)
    return name in {*keys, *(path.name for path in group_folders())}


def conf_folder() -> Path:
    """Return the folder of train.yaml and the groups."""
    package = Path(next(iter(lmtrain.__path__)))
    shipped = package / "conf"
    return shipped if shipped.is_dir() else package.parents[1] / "conf"


def option_names(group: str) -> list[str]:
    """Return the names of a group's options, in no order."""
    return [file.stem for file in (conf_folder() / group).glob("*.yaml")]


def key_of(word: str) -> str:
    """Return an override's key, without the sign before it."""
    return word.lstrip("+~").partition("=")[0]


def without(words: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the overrides but for those of these keys, and of the keys below them."""
    return [word for word in words if not any(f"{key_of(word)}.".startswith(f"{name}.") for name in names)]
