"""The words for another program's data, and for its settings of them: each with the option and the place they need."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from lmtrain.run.compose.foreign.table import DATA_SETS, Equivalent, options_of, settings_elsewhere

FILE: Final = re.compile(r"\.(?:txt|md|jsonl?|csv|tsv|parquet|npy|bin|gz|zst|py)$")
FILES, OF_HUB = "files", "hf_dataset"
# A place for each, where none is typed.
EXAMPLES: Final = {FILES: "source.paths=[my/notes]", OF_HUB: "source.name=roneneldan/TinyStories"}
OF_MESSAGES: Final = "task=sft learns conversations, a column of lists of {role, content}; texts are task=pretrain's"


def place_of_data(value: str, _: Sequence[str] = ()) -> Equivalent:
    """Return the words for a text at a place."""
    if value in options_of("source"):
        return Equivalent((f"source={value}",))
    inner = value.removeprefix("[").removesuffix("]")
    inner = re.sub(r"(?:^|(?<=,))[\d.]+,", "", inner)  # weights before files, as Megatron has them
    name = DATA_SETS.get(inner.lower(), inner)
    if Path(f"{inner}.bin").exists() and Path(f"{inner}.idx").exists():  # Megatron's two files of one prefix
        return Equivalent(("data=external", "data.folder.format=megatron", f"data.folder.train=[{inner}.bin]"))
    if not Path(inner).exists() and re.fullmatch(r"[\w-][\w.-]*/[\w.-]*[\w-]", name) and not FILE.search(name):
        return Equivalent((f"source={OF_HUB}", f"source.name={name}"))
    return Equivalent((f"source={FILES}", f"source.paths=[{inner}]"))


def _column(value: str, typed: Mapping[str, str]) -> Equivalent:
    """Return a column of the typed data; some tasks read conversations from it."""
    key = settings_elsewhere().columns.get(typed.get("task", ""))
    if key is None:
        return _setting(value, typed, words="source.text_column={}")
    of_data = _setting(value, typed, words=f"{key}={{}}")
    return Equivalent(of_data.words, "; ".join(filter(None, (of_data.note, OF_MESSAGES))), of_data.implied)


def _setting(value: str, typed: Mapping[str, str], *, words: str, option: str = "") -> Equivalent:
    """Return a setting of an option of source, by default of the typed data's, with a place where none is typed."""
    data = next((typed[name] for name in settings_elsewhere().names["data"] if name in typed), None)
    of_data = place_of_data(data).words if data else ()
    chosen = typed.get("source") or option or next((word[7:] for word in of_data if word.startswith("source=")), FILES)
    choice = () if "source" in typed else (f"source={chosen}",)
    example = EXAMPLES.get(chosen, "")
    is_placed = bool(data) or not example or example.partition("=")[0] in typed
    note, implied = ("", ()) if is_placed else (f"{example} is an example", (example,))
    return Equivalent((*choice, words.replace("{}", value)), note, implied)


SETTINGS: Final[Mapping[str, Callable[[str, Mapping[str, str]], Equivalent]]] = {
    "columns": _column,
    "held_out_files": partial(_setting, words="source.validation_paths=[{}]", option=FILES),
    "configs_of_data": partial(_setting, words="source.config={}", option=OF_HUB),
    "most_documents": partial(_setting, words="source.max_documents={}", option=OF_HUB),
}
