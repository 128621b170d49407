"""The offers of Tab after the words typed so far, read from the YAML files and from the verbs' own `--help`.

Hydra's own completion composes a config for it: 0.27 s of a processor.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from lmtrain.run.compose.option_files import default_options, option_rows, shared_keys
from lmtrain.run.compose.paths import option_names

# verb -> the entry config whose overrides it takes
CONFIGS: Final = {
    "train": "train",
    "plan": "train",
    "simulate": "train",
    "bench": "train",
    "doctor": "train",
    "parity": "train",
    "launch": "train",
    "tune": "train",
    "pipeline": "pipeline",
    "prepare": "prepare",
    "tokenizer": "make_tokenizer",
}
FLAG: Final = re.compile(r"(?<![\w-])--[a-z][\w-]*")
QUOTED: Final = re.compile(r"`[^`]*`")  # other commands, with flags of theirs
# First words of a verb: of its usage, as a|b; of its examples; and of argparse's list of parts
FIRST_WORDS: Final = (
    r"^(?:usage: )?{program} (?:\[-h\] )?([a-z0-9]+(?:\|[a-z0-9]+)+)",
    r"^  {program} ([a-z0-9]+)(?: |$)",
    r"^    ([a-z0-9]+)(?: |$)",
)
A_RUN: Final = re.compile(r"\bruns/|\ba run\b")
RUN_KEYS: Final = {"run.name": "", "init_from": "runs/", "resume": "runs/"}
WORDS: Final = {"resume": ("auto", "never", "must")}


def completions(
    words: Sequence[str],
    *,
    verbs: Iterable[str],
    conf: Path,
    page: Callable[[Sequence[str]], str],
    runs: Path = Path("runs"),
) -> list[str]:
    """Return the completions of the last word; the first is the verb; `page` is a verb's `--help`, or its part's."""
    *before, current = words or [""]
    verbs = [*verbs]
    if not before:
        found = [*verbs, "--help", "--version"]
    elif before[0] not in verbs:
        found = []
    elif current.startswith("-"):
        part = before[:2] if before[1:] and before[1] in _first_words(before[0], page) else before[:1]
        found = ["--help", *FLAG.findall(QUOTED.sub("", page(part)))]
    elif len(before) == 1 and "=" not in current and (first := _first_words(before[0], page)):
        found = first
    elif before[0] in CONFIGS:
        found = _overrides(before[1:], current, conf=conf, config=CONFIGS[before[0]], runs=runs)
    else:
        found = [f"{runs}/{name}" for name in _runs(runs)] if A_RUN.search(page(before[:2])) else []
    return sorted({word for word in found if word.startswith(current)})


def _first_words(verb: str, page: Callable[[Sequence[str]], str]) -> list[str]:
    """Return a verb's own first words, as on its page; none where it takes others."""
    text, program = page([verb]), re.escape(f"lmtrain {verb}")
    parted, examples, parts = (re.findall(form.format(program=program), text, re.MULTILINE) for form in FIRST_WORDS)
    listed = parts if text.startswith("usage: ") else examples
    return sorted({word for words in parted for word in words.split("|")} | {*listed})


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
        return option_names(key, conf)
    if key in RUN_KEYS:
        return [*WORDS.get(key, ()), *(f"{RUN_KEYS[key]}{name}" for name in _runs(runs))]
    group = key.partition(".")[0]
    file = conf / group / f"{chosen.get(group, '')}.yaml"
    rows = dict(option_rows(file)) if file.is_file() else {}
    value = rows[key][0] if key in rows else shared_keys(main).get(key, "")
    return ["true", "false"] if value in ("true", "false") else [value] if value and "${" not in value else []


def _runs(root: Path) -> list[str]:
    """Return the folders of runs, sweeps, pipelines and imports, each known by its JSON, and of the runs below."""
    files = [*root.glob("[!.]*/*.json"), *root.glob("[!.]*/[!.]*/run.json")]
    return [str(file.parent.relative_to(root)) for file in files]
