"""The options from `init_from=FOLDER`, where `lmtrain import` made FOLDER: values, read and checked, no config.

The folder may be anybody's. Of its facts come the model's settings, as one override a value; the options around them
(conf/model/imported.yaml, conf/base/imported.yaml) are ours.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from lmtrain.errors import ConfigurationError
from lmtrain.interop.imported_folder import FACTS, TOKENIZER, imported_facts, is_imported
from lmtrain.run.compose.file_values import tokenizer_words, value_words

BASE, OPTION = "base", "imported"  # the group of what comes before an adapter, a task and an experiment; its option


def imported_options(given: Mapping[str, str], *, chosen: Collection[str] = ()) -> list[str]:
    """Return the overrides of an imported folder; a typed model, experiment or tokenizer wins.

    Its optimizer stands in `base`, and gives way to an adapter's and a task's by the order of the list of defaults.
    `chosen` are groups for which typed options of others choose.

    Raises:
        ConfigurationError: model=imported or base=imported without such a folder.
        DataError: The folder's facts are no plain settings of a model.
    """
    init_from = given.get("init_from")
    folder = Path(init_from) if init_from and is_imported(Path(init_from)) else None
    asked = [f"{group}={OPTION}" for group in (BASE, "model") if given.get(group) == OPTION]
    if folder is None:
        if asked:
            raise ConfigurationError(
                f"{asked[0]} needs the folder of an imported model; add init_from=FOLDER, made by `lmtrain import`."
            )
        return []
    is_alone = not {BASE, "experiment", "model"} & {*given, *chosen}
    if not (is_alone or asked):
        return []
    words = [f"{BASE}={OPTION}"] if is_alone else []
    words += value_words("model", imported_facts(folder).get("settings"), source=folder / FACTS)
    has_own = "tokenizer" in given or "experiment" in given
    return words if has_own else [*words, *tokenizer_words((folder / TOKENIZER).absolute())]
