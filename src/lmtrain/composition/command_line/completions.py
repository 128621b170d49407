"""The offers of Tab after the words typed so far, read from the YAML files.

Hydra's own completion composes a config for it: 0.27 s of a processor.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from lmtrain.composition.command_line.help import default_options, shared_keys
from lmtrain.composition.command_line.help_topics import option_rows

# verb -> the entry config whose overrides it takes
CONFIGS: Final = {
    "train": "train",
    "plan": "train",
    "simulate": "train",
    "bench": "train",
    "doctor": "train",
    "parity": "train",
    "prepare": "prepare",
    "tokenizer": "make_tokenizer",
}
OF_A_RUN: Final = frozenset({"generate", "chat", "serve", "ledger", "report", "compare", "sync"})
FORMATS: Final = {"export": ("hf", "gguf"), "import": ("hf",), "completion": ("bash",), "calc": ("tensor", "matmul")}
FLAGS: Final = ("--help", "--json")
RUN_KEYS: Final = {"run.name": "", "init_from": "runs/", "resume": "runs/"}
WORDS: Final = {"resume": ("auto", "never", "must")}


def completions(words: Sequence[str], *, verbs: Iterable[str], conf: Path, runs: Path = Path("runs")) -> list[str]:
    """Return the completions of the last word; the first is the verb."""
    *before, current = words or [""]
    if not before:
        found = [*verbs, "--help", "--version"]
    elif before[0] in CONFIGS:
        found = _overrides(before[1:], current, conf=conf, config=CONFIGS[before[0]], runs=runs)
    elif before[0] in FORMATS and len(before) == 1:
        found = [*FORMATS[before[0]]]
    else:
        found = [f"{runs}/{name}" for name in _runs(runs)] if before[0] in {*OF_A_RUN, "export"} else []
    flags = FLAGS if before and current.startswith("-") else ()
    return sorted({word for word in (*found, *flags) if word.startswith(current)})


def _overrides(before: Sequence[str], current: str, *, conf: Path, config: str, runs: Path) -> list[str]:
    """Offer groups and keys, and after "=" the options of a group or the values of a key."""
    main = conf / f"{config}.yaml"
    chosen = default_options(main) | dict(word.split("=", 1) for word in before if "=" in word)
    groups = [group for group in default_options(main) if (conf / group).is_dir()]
    prefix = "+" if current.startswith("+") else ""
    key, equals, value = current.removeprefix("+").partition("=")
    if not equals:
        keys = _keys(conf, chosen, group=key.partition(".")[0]) if "." in key else ()
        below = [f"{name}." for name in {*groups, "batch", "run"}] if key in {*groups, "batch", "run"} else []
        plain = [f"{name}=" for name in shared_keys(main) if "." in key or "." not in name]
        return [prefix + word for word in (*below, *plain, *(f"{name}=" for name in (*groups, *keys)))]
    earlier = value[: value.rfind(",") + 1]  # of the values of a sweep
    return [f"{prefix}{key}={earlier}{each}" for each in _values(key, conf, chosen, main, runs)]


def _keys(conf: Path, chosen: dict[str, str], *, group: str) -> list[str]:
    """Return the keys of a group's chosen option."""
    file = conf / group / f"{chosen.get(group, '')}.yaml"
    return [key for key, _ in option_rows(file)] if file.is_file() else []


def _values(key: str, conf: Path, chosen: dict[str, str], main: Path, runs: Path) -> list[str]:
    if (conf / key).is_dir():
        return [file.stem for file in (conf / key).glob("*.yaml")]
    if key in RUN_KEYS:
        return [*WORDS.get(key, ()), *(f"{RUN_KEYS[key]}{name}" for name in _runs(runs))]
    group = key.partition(".")[0]
    file = conf / group / f"{chosen.get(group, '')}.yaml"
    rows = dict(option_rows(file)) if file.is_file() else {}
    value = rows[key][0] if key in rows else shared_keys(main).get(key, "")
    return ["true", "false"] if value in ("true", "false") else [value] if value and "${" not in value else []


def _runs(root: Path) -> list[str]:
    return [path.name for path in root.glob("[!.]*") if path.is_dir()]
