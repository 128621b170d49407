"""The options that `init_from` brings, of an imported model's folder or a run, and those that a continued run has.

The folder may be anybody's: its values become overrides, each checked as if it were typed, and never a config. Typed
options win, and so do the choices of a typed adapter, task or experiment for their groups.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.interop.folders import CONFIG, FACTS, TOKENIZER, imported_facts, is_imported, read_config_file
from lmtrain.models.transformers_config import AS_IS, LENGTHS, plain_settings
from lmtrain.run.compose.paths import conf_folder, key_of
from lmtrain.storage import foreign_json
from lmtrain.tracking.redaction import REDACTED

BASE, IMPORTED = "base", "imported"  # the group of what comes before an adapter, a task and an experiment; its option
INHERITED: Final = {"model": IMPORTED, "optimizer": "inherited"}  # the options that take a run's settings
BY_THIS_RUN: Final = ("attention", "path")  # of a model's settings: the new run's own choice, and a note
LONGEST: Final = 4096  # tokens of a sequence, where a model's config alone decides
OF_BATCH: Final = ("context_tokens", "tokens_per_step")  # what a forward pass takes depends on the device
WORD: Final = re.compile(r"[A-Za-z0-9_.-]+")
PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_./-]+")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LAYER: Final = re.compile(r"[0-9]{1,4}")  # Gemma 4 names layers 05; the number alone can be an override's key
CHOICE: Final = re.compile(r"^[^#\n]*\boverride /(\w+)\s*:", re.MULTILINE)
EXTENDED: Final = re.compile(r"^(?:defaults: *\[(\w+)\]|\s*- (\w+))\s*(?:#.*)?$", re.MULTILINE)


def brought_options(given: Mapping[str, str], *, own: str | None = None) -> list[str]:
    """Return the options from `init_from`; `own` is a person's folder of options.

    Raises:
        ConfigurationError: An option that needs `init_from` stands without it.
        DataError: The folder's facts are not plain settings.
    """
    chosen = _chosen_groups(given, own) if "init_from" in given else set[str]()
    return [
        *imported_options(given, chosen=chosen),
        *inherited_options(given, chosen=chosen),
        *class_options(given),
    ]


def class_options(given: Mapping[str, str]) -> list[str]:
    """Return the overrides of `model.path`, a folder of transformers: config, and tokenizer if none is typed.

    Its weights are not read, so they may be quantized.
    """
    path = given.get("model.path", "").strip("'\"")
    if given.get("model") != "transformers" or not path:
        return []
    folder = Path(path)
    words = value_words("model.config", plain_settings(read_config_file(folder)), source=folder / CONFIG)
    has_tokenizer = "tokenizer" not in given and (folder / "tokenizer.json").is_file()
    return [*words, *tokenizer_words(folder.absolute())] if has_tokenizer else words


def class_words(path: str, given: Mapping[str, str]) -> list[str]:
    """Return the words that plan the model of a folder of transformers, or of its config.json.

    Without a typed `base`, a sequence is as long as the model's longest, at most LONGEST tokens.

    Raises:
        ConfigurationError: Another model is typed.
    """
    if "model" in given:
        raise ConfigurationError(f"--hf {path} names the model: got model={given['model']} too; leave one out.")
    file = Path(path)
    folder = file.parent if file.name == CONFIG else file
    settings = read_config_file(folder)
    sizes = settings.get("text_config", settings)
    lengths = (sizes.get(name) for name in LENGTHS if isinstance(sizes, dict))
    longest = next((length for length in lengths if isinstance(length, int) and length > 0), LONGEST)
    words = ["model=transformers", f"model.path={path_value(folder)}"]
    if "base" not in given:
        words.append("base=published_4k")
        words += [f"batch.context_tokens={min(longest, LONGEST)}"] * ("batch.context_tokens" not in given)
    return words


def own_options(given: Mapping[str, str]) -> list[str]:
    """Return the overrides of the existing run that `run.name` names, where nothing but a run and a budget is typed.

    A command with other words is complete: it is the run's own again, or it changes the run. A typed budget replaces
    the whole budget.
    """
    name = given.get("run.name", "").strip("'")
    job = _job_file(Path(given.get("run.root", "runs"), name)) if name and given.get("resume") != "never" else None
    if job is None or (typed := _heads(given)) - {"run", "budget", "resume"}:
        return []
    words = foreign_json.read(job).get("overrides", [])
    replaced = {*typed, "run", "resume", "hydra", "sweep"}
    return [
        word
        for word in words
        if isinstance(word, str) and REDACTED not in word and not _heads([key_of(word)]) & replaced
    ]


def _heads(keys: Iterable[str]) -> set[str]:
    return {re.split(r"[./@]", key)[0] for key in keys}


def imported_options(given: Mapping[str, str], *, chosen: Collection[str] = ()) -> list[str]:
    """Return the overrides of a folder made by `lmtrain import`; a typed model, experiment or tokenizer wins.

    `chosen` are groups for which typed options of others choose.
    """
    init_from = given.get("init_from")
    folder = Path(init_from) if init_from and is_imported(Path(init_from)) else None
    asked = [f"{group}={IMPORTED}" for group in (BASE, "model") if given.get(group) == IMPORTED]
    if folder is None:
        if asked:
            raise ConfigurationError(
                f"{asked[0]} needs the folder of an imported model; add init_from=FOLDER, made by `lmtrain import`."
            )
        return []
    is_alone = not {BASE, "experiment", "model"} & {*given, *chosen}
    if not (is_alone or asked):
        return []
    words = [f"{BASE}={IMPORTED}"] if is_alone else []
    settings: Any = imported_facts(folder).get("settings")
    words += value_words("model", settings, source=folder / FACTS)
    words += ["~model.attention"] if settings.get("_target_") == AS_IS else []
    has_own = "tokenizer" in given or "experiment" in given
    return words if has_own else [*words, *tokenizer_words((folder / TOKENIZER).absolute())]


def inherited_options(given: Mapping[str, str], *, chosen: Collection[str] = ()) -> list[str]:
    """Return the overrides of a run: its model, optimizer, batch and tokenizer; an experiment chooses for itself."""
    init_from = given.get("init_from")
    job = _job_file(Path(init_from)) if init_from else None
    if job is None:
        if given.get("optimizer") == INHERITED["optimizer"]:
            raise ConfigurationError("optimizer=inherited needs the run that it is of; add init_from=RUN.")
        return []
    if "experiment" in given:
        return []
    config, words = _config(job), list[str]()
    for group, option in INHERITED.items():
        if group in chosen and given.get(group) != option:
            continue
        if given.get(group, option) == option and isinstance(node := config.get(group), dict):
            kept = {name: value for name, value in node.items() if name not in BY_THIS_RUN}
            words += [f"{group}={option}", *value_words(group, kept, source=job)]
            words += ["~model.attention"] if group == "model" and "attention" not in node else []
    words += value_words("batch", {key: config["batch"].get(key) for key in OF_BATCH}, source=job)
    return words if "tokenizer" in given else [*words, *tokenizer_words((job.parents[2] / TOKENIZER).absolute())]


def _job_file(path: Path) -> Path | None:
    """Return the config of a run or of a checkpoint's run, None where the path is neither."""
    from lmtrain.tracking.run_folder import RunFolder  # of command lines with init_from alone

    run = path.parent.parent if path.parent.name == "checkpoints" else path
    attempt = RunFolder(run).accepted_attempt()
    file = attempt / "job.json" if attempt else None
    return file if file is not None and file.is_file() else None


def _config(job: Path) -> dict[str, Any]:
    try:
        config = foreign_json.read(job)["config"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataError(f"{job} cannot be read ({problem}); name another run in init_from.") from problem
    if not isinstance(config, dict) or not isinstance(config.get("batch"), dict):
        raise DataError(f"{job} holds no config; name another run in init_from.")
    return config


def _chosen_groups(given: Mapping[str, str], own: str | None) -> set[str]:
    """Return the groups for which the given options choose in their lists of defaults, or those that they extend."""
    folders = [conf_folder(), *([Path(own)] if own else [])]
    waiting = [(group, option) for group, options in given.items() for option in options.strip("[]").split(",")]
    chosen, seen = set[str](), set[tuple[str, str]]()
    while waiting:
        group, option = (word.strip(" '\"") for word in waiting.pop())
        is_named = NAME.fullmatch(group) and NAME.fullmatch(option)
        files = [file for folder in folders if is_named and (file := folder / group / f"{option}.yaml").is_file()]
        if files and (group, option) not in seen:
            seen.add((group, option))
            text = files[0].read_text(encoding="utf-8", errors="replace")
            chosen |= {*CHOICE.findall(text)}
            waiting += [(group, next(filter(None, found))) for found in EXTENDED.findall(text)]
    return chosen


def value_words(group: str, settings: Any, *, source: Path) -> list[str]:
    """Return an override for each value of a group's settings in the file `source`.

    Raises:
        DataError: They are not plain settings: other text than a word could be an interpolation.
    """
    if not isinstance(settings, dict):
        raise DataError(f"{source} has no settings of {group}; make it again.")
    return [f"++{key}={value}" for key, value in _leaves(group, settings, source)]


def _leaves(key: str, node: Mapping[str, Any], source: Path) -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        if LAYER.fullmatch(name):
            name = f"{int(name)}"
        elif not NAME.fullmatch(name):
            raise DataError(f"{source}: {key} has the invalid setting {name!r}; make it again.")
        if isinstance(value, dict):
            yield from _leaves(f"{key}.{name}", value, source)
        else:
            yield f"{key}.{name}", _word(value, key=f"{key}.{name}", source=source)


def _word(value: Any, *, key: str, source: Path) -> str:
    if isinstance(value, list):
        return f"[{','.join(_word(item, key=key, source=source) for item in value)}]"
    if value == "":  # as in the config.json of DBRX
        return "''"
    if isinstance(value, str) and not WORD.fullmatch(value):
        raise DataError(f"{source}: {key}={value!r} is not a plain value; make it again.")
    if isinstance(value, dict):
        pairs = {
            _word(name, key=key, source=source): _word(item, key=key, source=source) for name, item in value.items()
        }
        return "{" + ",".join(f"{name}:{word}" for name, word in pairs.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value)


def tokenizer_words(path: Path) -> list[str]:
    """Return the overrides for the tokenizer of a folder, none where there is no such folder."""
    if not path.is_dir():
        return []
    from lmtrain.tokenizers.loading import load_tokenizer

    size = load_tokenizer(path).vocab_size
    return ["tokenizer=folder", f"tokenizer.path={path_value(path)}", f"tokenizer.vocab_size={size}"]


def path_value(path: Path) -> str:
    """Return a path as an override's value: in quotes where Hydra would read some character otherwise."""
    if PLAIN_PATH.fullmatch(str(path)):
        return str(path)
    quoted = str(path).replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return f"'{quoted}'"
