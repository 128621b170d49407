"""The options from `init_from=RUN`: the model, tokenizer, optimizer and batch of a run trained here.

A run's folder may be anybody's: its values become overrides, each checked as if it were typed.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.compose.file_values import tokenizer_words, value_words
from lmtrain.storage import foreign_json

MODEL, OPTIMIZER, BATCH, TOKENIZER = "model", "optimizer", "batch", "tokenizer"
OPTIONS: Final = {MODEL: "imported", OPTIMIZER: "inherited"}
BY_THIS_RUN: Final = ("attention",)  # of a model's settings: the new run's own choice
OF_BATCH: Final = ("context_tokens", "tokens_per_step")  # what a forward pass takes depends on the device


def inherited_options(given: Mapping[str, str], *, chosen: Collection[str] = ()) -> list[str]:
    """Return the overrides of a run in `init_from`; what is typed wins, and an experiment chooses for itself.

    `chosen` are groups for which typed options of others choose.

    Raises:
        ConfigurationError: optimizer=inherited without such a run.
        DataError: The run's config is no plain settings.
    """
    init_from = given.get("init_from")
    job = _job_file(Path(init_from)) if init_from else None
    if job is None:
        if given.get(OPTIMIZER) == OPTIONS[OPTIMIZER]:
            raise ConfigurationError(f"{OPTIMIZER}={OPTIONS[OPTIMIZER]} needs the run it is of; add init_from=RUN.")
        return []
    if "experiment" in given:
        return []
    config, words = _config(job), list[str]()
    for group, option in OPTIONS.items():
        if group in chosen and given.get(group) != option:
            continue
        if given.get(group, option) == option and isinstance(node := config.get(group), dict):
            words += [f"{group}={option}", *_settings(group, node, source=job)]
    words += value_words(BATCH, {key: config.get(BATCH, {}).get(key) for key in OF_BATCH}, source=job)
    return words if TOKENIZER in given else [*words, *tokenizer_words((job.parents[2] / TOKENIZER).absolute())]


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
    if not isinstance(config, dict) or not isinstance(config.get(BATCH), dict):
        raise DataError(f"{job} holds no config; name another run in init_from.")
    return config


def _settings(group: str, node: Mapping[str, Any], *, source: Path) -> list[str]:
    kept = {name: value for name, value in node.items() if name not in BY_THIS_RUN}
    words = value_words(group, kept, source=source)
    return words if group != MODEL or "attention" in node else [*words, "~model.attention"]
