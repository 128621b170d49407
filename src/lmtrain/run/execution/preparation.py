"""`lmtrain prepare`: check each node of the config under its command-line name, and prepare the data of `data`."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmtrain.data.dataset_folder import require_whole
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import Arguments, parse_arguments
from lmtrain.run.compose.compose import configs_of
from lmtrain.run.compose.paths import key_of
from lmtrain.run.planning.prepared_tokens import remember_prepared
from lmtrain.run.schema.check import check_node, check_value
from lmtrain.run.schema.node import Node, instantiate
from lmtrain.run.settings import RunSettings
from lmtrain.run.stored_runs.find_run import START, require_source

FOLDER = "data.folder"
BUDGET = "budget"
NUM_TOKENS = "token_budget"
OF_TRAINING = frozenset({"init_from", "task", "experiment"})  # each chooses a text or its tokenizer
NAMED = ("cleaning", "deduplicate", "source", "engine", "tokenizer")  # groups in the folder's node


def prepare_data(words: list[str]) -> int:
    """Prepare one data set, or one a trial under -m, and print each one's folder.

    With init_from, a task or an experiment they are a training's overrides, and its own data is prepared.
    """
    is_training = any(key_of(word) in OF_TRAINING for word in words if not word.startswith("+"))
    arguments = parse_arguments(words, budget_group=is_training)
    for config, _ in configs_of(arguments, config_name="train" if is_training else "prepare"):
        checked = checked_folder(config, arguments, is_training=is_training)
        folder: Path = instantiate(checked, key=FOLDER)
        require_whole(dataset := open_dataset(folder))
        with suppress(OSError):  # in somebody else's folder a plan only knows less
            cache = Path(config["run"]["cache"] if is_training else RunSettings.cache)
            remember_prepared(Node(FOLDER, checked), folder, cache=cache)
        print(f"data: {dataset.described}", file=sys.stderr)
        print(folder)
    return 0


def checked_folder(config: dict[str, Any], arguments: Arguments, *, is_training: bool = False) -> dict[str, Any]:
    """Return the data's node, with every value checked; the token budget of a preparation is in it."""
    for word in arguments.overrides if not is_training else ():
        key = key_of(word)
        if key.startswith("data.") and not f"{key}.".startswith(f"{FOLDER}."):
            raise ConfigurationError(f"{word} has no effect here: it is a setting of training; leave it out.")
    if is_training and config["init_from"]:
        require_source(Path(config["init_from"]), key=START, is_trained=False)
    if "folder" not in config["data"]:
        raise ConfigurationError(f"{FOLDER} is missing: this data only reads prepared folders; leave data=... out.")
    for name in NAMED if is_training else [name for name in config if name not in ("data", BUDGET)]:
        check_node(config[name], key=name, allowed=arguments.allowed_targets)
    tokens = None if is_training else check_value(config[BUDGET]["tokens"], int | None, key="budget.tokens")
    folder = {**config["data"]["folder"], **({} if tokens is None else {NUM_TOKENS: tokens})}
    return check_node(folder, key=FOLDER, allowed=arguments.allowed_targets)
