"""The options from `init_from=FOLDER`, where `lmtrain import` made FOLDER: values, read and checked, no config.

The folder may be anybody's. Of its facts come the model's settings, as one override a value; the options around them
(conf/model/imported.yaml, conf/experiment/imported.yaml) are ours.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.interop.imported_folder import FACTS, TOKENIZER, is_imported

OPTION: Final = "imported"
WORD: Final = re.compile(r"[A-Za-z0-9_.-]+")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def imported_options(given: Mapping[str, str]) -> list[str]:
    """Return the overrides of an imported folder; a typed model, experiment or tokenizer wins.

    Raises:
        ConfigurationError: model=imported or experiment=imported without such a folder.
        DataError: The folder's facts are no plain settings of a model.
    """
    init_from = given.get("init_from")
    folder = Path(init_from) if init_from and is_imported(Path(init_from)) else None
    asked = [f"{group}={OPTION}" for group in ("experiment", "model") if given.get(group) == OPTION]
    if folder is None:
        if asked:
            raise ConfigurationError(
                f"{asked[0]} needs the folder of an imported model; add init_from=FOLDER, made by `lmtrain import`."
            )
        return []
    is_alone = not {"experiment", "model"} & given.keys()
    if not (is_alone or asked):
        return []
    words = [f"experiment={OPTION}"] if is_alone else []
    words += _settings(_facts(folder).get("settings"), folder)
    has_own = "tokenizer" in given or given.get("experiment", OPTION) != OPTION
    return words if has_own else [*words, *_tokenizer(folder)]


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise DataError(f"{folder / FACTS} cannot be read ({problem}); import the model again.") from problem
    if not isinstance(facts, dict):
        raise DataError(f"{folder / FACTS} is no object; import the model again.")
    return facts


def _settings(settings: Any, folder: Path) -> list[str]:
    if not isinstance(settings, dict):
        raise DataError(f"{folder / FACTS} has no settings of a model; import the model again.")
    return [f"++{key}={value}" for key, value in _leaves("model", settings, folder)]


def _leaves(key: str, node: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        if not NAME.fullmatch(name):
            raise DataError(f"{folder / FACTS}: {key} has the setting {name!r}, which is no name; import it again.")
        if isinstance(value, dict):
            yield from _leaves(f"{key}.{name}", value, folder)
        else:
            yield f"{key}.{name}", _word(value, key=f"{key}.{name}", folder=folder)


def _word(value: Any, *, key: str, folder: Path) -> str:
    """Return a plain value as an override's; other text than a word could be an interpolation."""
    if isinstance(value, list):
        return f"[{','.join(_word(item, key=key, folder=folder) for item in value)}]"
    if isinstance(value, str) and not WORD.fullmatch(value):
        raise DataError(f"{folder / FACTS}: {key}={value!r} is no setting of a model; import it again.")
    return value if isinstance(value, str) else json.dumps(value)


def _tokenizer(folder: Path) -> list[str]:
    path = (folder / TOKENIZER).absolute()
    if not path.is_dir():
        return []
    from lmtrain.tokenizers.loading import load_tokenizer

    quoted = str(path).replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return ["tokenizer=folder", f"tokenizer.path='{quoted}'", f"tokenizer.vocab_size={load_tokenizer(path).vocab_size}"]
