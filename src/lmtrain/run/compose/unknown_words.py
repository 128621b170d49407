"""The message for an unknown option or key on the command line, and for a part of a run that is gone or one value."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from lmtrain.errors import ConfigurationError, did_you_mean
from lmtrain.run.compose.group_options import beside_ordinary
from lmtrain.run.compose.meant_options import (
    NO_OPTION,
    OFF,
    TIKTOKEN,
    amount_meant,
    options_meant,
    spelled,
    why_nearest,
)
from lmtrain.run.compose.paths import (
    MANY_OPTIONS,
    conf_folder,
    group_folders,
    is_text_file,
    key_of,
    option_names,
)
from lmtrain.run.schema.source_signatures import setting_names
from lmtrain.search.search_settings import SearchSettings

HUB: Final = {
    "tokenizer": "; Hugging Face's are tokenizer=huggingface tokenizer.name={}",
    "model": "; weights of transformers come by `lmtrain import hf FOLDER runs/base`, then init_from=runs/base",
    "source": "; data sets of Hugging Face are source=hf_dataset source.name=OWNER/NAME",
}
OF_SIZES: Final = "model"
OF_TEXT: Final = ("source", "data")


def unknown_option(group: str, option: str, options: Iterable[str]) -> str:
    """Name the nearest options of a word, by its parts, its name elsewhere or its letters; without one, all of them."""
    known = sorted(options)
    word = spelled(option)
    found = options_meant(group, option, known) or difflib.get_close_matches(word, known, n=1)
    near = did_you_mean([name if group in MANY_OPTIONS else f"{group}={name}" for name in found])
    no_option = NO_OPTION.get(group, {}).get(word) or _not_an_option(group, option)
    if no_option:
        return f"{group}={option}: {no_option}.{near if group == 'model' else ''}"
    if near:
        why = f" ({why_nearest(group, option)})." if why_nearest(group, option) else ""
        return f"{group}={option}: there is no such option.{near}{why} `--help {group}` lists all {len(known)}."
    of_the_hub = HUB.get(group, "").format(option)
    return f"{group}={option}: there is no such option; {group} has {', '.join(known)}{of_the_hub}."


def number_as_option(problem: str, overrides: Iterable[str], conf: Path) -> str | None:
    """Name an option typed as a number, such as precision=16: Hydra's message does not. None for another problem."""
    if "Config group override must be" not in problem:
        return None
    for text in overrides:
        group, _, option = text.lstrip("+~").partition("=")
        options = option_names(group, conf) if group else []
        if options and option not in options and not option.startswith("["):
            return unknown_option(group, option, options)
    return None


def _not_an_option(group: str, option: str) -> str:
    """Say where a path or a name on the hub belongs, "" for another word."""
    if group in OF_TEXT and (option.startswith((".", "~", "/")) or Path(option).exists() or is_text_file(option)):
        return f"a folder or file of your own is source=files 'source.paths=[{option}]'"
    if group in OF_TEXT and "/" in option:
        return (
            f"a folder of your own is source=files 'source.paths=[{option}]', which is not here; a data set of "
            f"Hugging Face is source=hf_dataset source.name={option}"
        )
    if meant := amount_meant(group, option):
        return f"an amount is the value of a key; write {meant}"
    if group == "tokenizer" and option in TIKTOKEN:
        return f"tiktoken's are on the hub; write tokenizer=huggingface tokenizer.name={TIKTOKEN[option]}"
    if group == "model" and "/" in option:
        return "a name on the hub is no option; weights come by `lmtrain import hf FOLDER OUT`, then init_from=OUT"
    return ""


def unknown_key(key: str, *, typed: str, config: dict[str, Any], conf: Path) -> str:
    """Name the keys of a key's node in a composed config, and the other options with such a key."""
    groups = [path.name for path in group_folders(conf)]
    known = leaf_keys(config)
    if key in groups:  # there are such options, for another command
        children = [name.rpartition(".")[2] for name in known if name.startswith(f"{key}.")]
        has = f"; {key} has the keys {', '.join(children)}" if children else ""
        return f"{typed} has no effect: there is no choice of {key} here{has}."
    parent, _, name = key.rpartition(".")
    callback = parent.removeprefix("callbacks.")
    if callback != parent and node_at(config, parent) is None and (conf / "callbacks" / f"{callback}.yaml").is_file():
        whole: dict[str, None] = dict.fromkeys([*map(str, node_at(config, "callbacks") or {}), callback])
        return f"{typed}: {parent} is not chosen; write {beside_ordinary(whole)} {typed}."
    if not isinstance(node_at(config, parent), dict) or not parent:
        of_sweeps = [f"sweep.{each.name}" for each in fields(SearchSettings)]  # a node of its own, of -m alone
        likely = [group for group in groups if _is_likely(group, key, typed.partition("=")[2], conf=conf)]
        near = difflib.get_close_matches(key, [*known, *likely, *of_sweeps], n=1, cutoff=0.6)
        chosen = [group for group in groups if group in config]
        is_key = any("." in each for each in near)
        if not is_key and (whole_words := _of_another_option(key, typed, groups=chosen, conf=conf)):
            return f"{typed}: there is no key {key}; write {whole_words}."
        return f"{typed}: there is no key {key}.{did_you_mean([_with_value(each, typed) for each in near])}"
    siblings = [each for each in known if each.rpartition(".")[0] == parent]
    names = ", ".join(each.rpartition(".")[2] for each in siblings)
    is_built = _is_built(node_at(config, key.partition(".")[0]))
    value = typed.partition("=")[2]
    from lmtrain.run.compose.model_knob import by_its_knob  # only to refuse

    if is_built and parent == OF_SIZES and (knob := by_its_knob(node_at(config, parent), name, value)):
        return f"{typed}: there is no key {key}: its sizes follow {key_of(knob)}; write {knob}."
    others = (options_with(key, conf=conf) or options_that_take(key, conf=conf)) if is_built else []
    listed = f"{parent} has {names}" if names else f"{parent} has no settings as it is chosen"
    group = key.partition(".")[0]
    elsewhere = f"; {name} is a setting of {group}={', '.join(others)}" if others else ""
    is_off = is_built and value.lower() in OFF
    off = " Here is nothing to switch off: leave it out." if is_off else ""
    near = "" if others else _near(name, siblings, typed=typed)
    return f"{typed}: there is no key {key}; {listed}{elsewhere}.{off or near}"


def _is_likely(group: str, key: str, value: str, *, conf: Path) -> bool:
    """Tell whether a group may be meant: by an option of it, or by all but a letter or two of its name."""
    return (conf / group / f"{value}.yaml").is_file() or bool(difflib.get_close_matches(key, [group], cutoff=0.8))


def of_training_alone(typed: str) -> str:
    """Return the message for a word of a command without training that names a setting of training."""
    return f"{typed} has no effect here: it is a setting of training; leave it out."


def _of_another_option(key: str, typed: str, *, groups: Sequence[str], conf: Path) -> str:
    """Return the words for a key of a mistyped group with the first option that has it, "" where none has."""
    group, _, name = key.partition(".")
    for meant in difflib.get_close_matches(group, groups, n=1, cutoff=0.6) if name else ():
        whole = f"{meant}.{name}"
        for option in (options_with(whole, conf=conf) or options_that_take(whole, conf=conf))[:1]:
            return f"{meant}={option} {whole}={typed.partition('=')[2]}"
    return ""


def _near(name: str, siblings: Sequence[str], *, typed: str) -> str:
    """Suggest the key with the nearest last word: the node before it, equal in all, makes none nearer."""
    by_name = {each.rpartition(".")[2]: each for each in siblings}
    near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.6)
    return did_you_mean([_with_value(by_name[each], typed) for each in near])


def _with_value(key: str, typed: str) -> str:
    """Return the whole word to type instead; a node's name in a key's place takes no value."""
    name, equals, value = typed.partition("=")
    return f"{key}{equals}{value}" if key.count(".") == name.count(".") else key


def _is_built(node: Any) -> bool:
    """Tell an option's node from plain keys of the same name, as `budget` is where only tokens count."""
    return isinstance(node, Mapping) and ("_target_" in node or any(map(_is_built, node.values())))


def options_with(key: str, *, conf: Path) -> list[str]:
    """Return the options with a key of their group in their own file."""
    group, *path = key.split(".")
    found: list[str] = []
    for file in sorted((conf / group).glob("*.yaml")) if path else []:
        loaded = OmegaConf.load(file)
        assert isinstance(loaded, DictConfig)
        content = OmegaConf.to_container(loaded, resolve=False)
        assert isinstance(content, dict)
        node: Any = content.get(group, content)  # an option setting others too begins at the root
        *above, name = path
        holder = node_at(node, ".".join(above))
        if isinstance(holder, dict) and name in holder:
            found.append(file.stem)
    return found


def options_that_take(key: str, *, conf: Path) -> list[str]:
    """Return the options of a key's group whose constructor takes it, named in their file or not."""
    group, _, name = key.partition(".")
    files = sorted((conf / group).glob("*.yaml"))
    return [file.stem for file in files if name in setting_names(target_of(file))]


def target_of(file: Path) -> str:
    """Return an option's target, its own or its base option's; "" without one."""
    option = OmegaConf.load(file)
    assert isinstance(option, DictConfig)
    extended = [file.with_name(f"{each}.yaml") for each in option.get("defaults", []) if isinstance(each, str)]
    inherited = next((target_of(each) for each in extended if each.is_file()), "")
    return str(option.get("_target_", inherited))


def is_setting(config: Mapping[str, Any], key: str) -> bool:
    """Tell whether a node's constructor takes this key: it has to be added then."""
    parent, _, name = key.rpartition(".")
    node = node_at(config, parent)
    return bool(parent) and isinstance(node, dict) and name in setting_names(str(node.get("_target_", "")))


def node_at(config: Any, path: str) -> Any:
    """Return the value at a dotted path, None where there is none; the config itself for an empty path."""
    for part in path.split(".") if path else []:
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def leaf_keys(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return every dotted key of a config, groups included."""
    keys: list[str] = []
    for name, value in config.items():
        if str(name).startswith("_"):  # a number where a setting maps from numbers
            continue
        keys.append(f"{prefix}{name}")
        if isinstance(value, dict):
            keys += leaf_keys(value, f"{prefix}{name}.")
    return keys


def require_parts(composed: DictConfig, overrides: Iterable[str], *, meant: Callable[[str, str], str]) -> None:
    """Refuse a config without one of its parts; a key below one, as ~callbacks.validation, may go.

    `meant` gives the word for one value in the place of a part.

    Raises:
        ConfigurationError: A part is gone, or is one value in the place of several keys.
    """
    for word in overrides:
        name, value = key_of(word), word.partition("=")[2]
        if "." in name:
            continue
        if word.startswith("~"):
            raise ConfigurationError(f"{word}: every run has {name}; nearest valid: without this word.")
        if name in composed and not OmegaConf.is_dict(composed[name]) and (keys := _keys_of_part(name)):
            listed = f"{word} is one value, and {name} has {', '.join(keys)}"
            way = "leave it out" if value.lower() in OFF else f"write {meant(name, value)}"
            raise ConfigurationError(f"{listed}; {way}.")


def _keys_of_part(name: str) -> list[str]:
    """Return the keys of a part that has no options to choose from; nothing for a single value."""
    config = OmegaConf.to_container(OmegaConf.load(conf_folder() / "train.yaml"), resolve=False)
    part = config.get(name) if isinstance(config, dict) else None
    return [str(key) for key in part if key != "_target_"] if isinstance(part, dict) else []
