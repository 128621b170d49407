from lmtrain.composition.command_line.compose import compose_config
from lmtrain.composition.command_line.equivalents import OUR_CHOICE, OUR_KEY, OUR_WORDS, name_elsewhere
from lmtrain.composition.command_line.paths import conf_folder
from lmtrain.composition.command_line.unknown_words import leaf_keys, target_of
from lmtrain.composition.nodes.source_signatures import setting_names


def test_every_word_to_type_instead_is_a_key_and_none_that_is_refused_is() -> None:
    keys = {*leaf_keys(compose_config([]))}
    assert {*OUR_KEY.values()} <= keys
    options = [path for path in conf_folder().glob("*/*.yaml") if path.parent.name != "pipeline"]
    taken = {f"{path.parent.name}.{name}" for path in options for name in setting_names(target_of(path))}
    internal = {"trainer.precision"}  # of make_trainer, given by the group precision
    assert not [key for key in (keys | taken) - internal if name_elsewhere(key)]


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
