import shlex
from dataclasses import fields
from functools import cache

import pytest

from lmtrain.composition.command_line.arguments import parse_arguments
from lmtrain.composition.command_line.called_elsewhere import CALLED_OPTIONS
from lmtrain.composition.command_line.compose import compose_config
from lmtrain.composition.command_line.equivalents import NAMES, OUR_CHOICE, OUR_KEY, OUR_WORDS, name_elsewhere
from lmtrain.composition.command_line.meant import MeantWord
from lmtrain.composition.command_line.paths import conf_folder
from lmtrain.composition.command_line.unknown_words import leaf_keys, options_that_take, options_with, target_of
from lmtrain.composition.nodes.source_signatures import setting_names
from lmtrain.errors import ConfigurationError
from lmtrain.search.search_settings import SearchSettings

SWEEPS = frozenset(f"sweep.{each.name}" for each in fields(SearchSettings))


@cache
def is_key(key: str) -> bool:
    return bool(options_with(key, conf=conf_folder()) or options_that_take(key, conf=conf_folder()))


def test_every_word_to_type_instead_is_a_key_and_none_that_is_refused_is() -> None:
    keys = SWEEPS | {*leaf_keys(compose_config([]))}
    assert {*OUR_KEY.values()} <= keys
    options = [path for path in conf_folder().glob("*/*.yaml") if path.parent.name != "pipeline"]
    taken = {f"{path.parent.name}.{name}" for path in options for name in setting_names(target_of(path))}
    internal = {"trainer.precision", "trainer.strategy"}  # of make_trainer, given by the groups
    assert not [key for key in (keys | taken) - internal if name_elsewhere(key)]


def test_words_for_every_name_and_alias_typed_as_a_flag_are_keys_and_options() -> None:
    files = [path for path in conf_folder().glob("*/*.yaml") if path.parent.name != "pipeline"]
    options = [(path.parent.name, path.stem) for path in files]
    keys = SWEEPS | {*leaf_keys(compose_config([]))}
    aliases = [(group, name) for group, called in CALLED_OPTIONS.items() for name in called]
    aliases += [(group, name.replace("_", "-").upper()) for group, name in options]
    values = [(name, value) for name, (_, choice) in OUR_CHOICE.items() for value in (*choice, "true") if value]
    for name, value in [*aliases, *values, *((name, "3") for name in NAMES)]:
        with pytest.raises(MeantWord if (name, value) in aliases else ConfigurationError) as refused:
            parse_arguments([f"--{name}", value])
        meant = refused.value.meant if isinstance(refused.value, MeantWord) else ""
        for word in shlex.split(meant.partition(" (")[0]):
            key, _, option = word.partition("=")
            is_option = (key, option) in options or option == "OPTION" or option.startswith("[")
            is_group = (conf_folder() / key).is_dir()
            assert is_option if is_group else key in keys or is_key(key), (name, value, word)


def test_options_to_type_instead_are_there() -> None:
    told = [word for words in OUR_WORDS.values() for word in words if "." not in word and "[" not in word]
    told += [
        f"{group}={option}"
        for (*_, group), options in OUR_CHOICE.values()
        for option in options.values()
        if "." not in group and group != "resume"
    ]
    missing = [word for word in told if not (conf_folder() / f"{word.replace('=', '/')}.yaml").is_file()]
    assert told
    assert not missing
