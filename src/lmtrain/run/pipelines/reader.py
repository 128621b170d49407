"""A pipeline read from its config and the words of a command line."""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, did_you_mean, suggest
from lmtrain.run.compose.arguments import ALLOW_TARGET, Arguments, parse_arguments, parse_flags
from lmtrain.run.compose.compose import for_each_config
from lmtrain.run.compose.paths import conf_folder, is_key_of_training, option_names
from lmtrain.run.compose.untrusted_options import IN_A_WORD
from lmtrain.run.pipelines.stages import (
    START,
    TRAIN,
    VERBS,
    CommandPipeline,
    PipelineStage,
    first_name,
)
from lmtrain.tracking.run_folder import run_path

FLAGS: Final = ("--plan", "--json")
EACH: Final = "each"
SHORTEST_FLAG: Final = 4  # letters: argparse takes --al for --allow-target
STAGE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # no path
OF_A_RUN: Final = ("run.name", "run.root", START, "resume")  # a stage's own, by its place
OWN: Final = ("pipeline", "run", "hydra")  # keys of the pipeline itself
KEYS: Final = ("verb", "of", "words", "preflight")


def read_pipeline(words: Sequence[str]) -> CommandPipeline:
    """Compose `pipeline=NAME`, `run.KEY=VALUE`, `STAGE.KEY=VALUE` of a stage, and `each.KEY=VALUE` of all trainings.

    Raises:
        ConfigurationError: There is no such pipeline, or a stage is none.
    """
    _refuse_bare(words)
    arguments, of_stages = _own_arguments(words)
    found: list[CommandPipeline] = []
    for_each_config(
        lambda config, chosen: found.append(_read(config, chosen.options["pipeline"])),
        arguments,
        config_name="pipeline",
    )
    if len(found) != 1:
        raise ConfigurationError("lmtrain pipeline runs one pipeline; leave out -m.")
    read = replace(found[0], allowed=tuple(arguments.allowed_targets), config_dir=arguments.config_dir)
    return _with_words(read, of_stages)


def shows_config(words: Sequence[str]) -> bool:
    """Print a pipeline's composed config where `--cfg` asks for it, and tell whether it does.

    Raises:
        ConfigurationError: There are words of stages beside it, which would not be in it.
    """
    _refuse_bare(words)
    arguments, of_stages = _own_arguments(words)
    if not parse_flags(arguments.flags).show:
        return False
    if of_stages:
        raise ConfigurationError(
            f"--cfg prints the pipeline's own config, before words of its stages; leave out {shlex.join(of_stages)}."
        )
    for_each_config(lambda *_: None, arguments, config_name="pipeline")
    return True


def _own_arguments(words: Sequence[str]) -> tuple[Arguments, list[str]]:
    """Return the words of the pipeline itself, and those of its stages."""
    words = [word for word in words if word not in FLAGS]
    own = [word for word in words if first_name(word) in OWN or word.startswith("-") or "=" not in word]
    return parse_arguments(own, budget_group=False), [word for word in words if word not in own]


def _refuse_bare(words: Sequence[str]) -> None:
    """Refuse a pipeline's name without its key, and a flag of this command with a value."""
    for word in words:
        flag = word.partition("=")[0]
        if flag != word and flag in FLAGS:
            raise ConfigurationError(f"{word}: {flag} has no value; write {flag}.")
        near = did_you_mean(difflib.get_close_matches(flag, FLAGS, n=1) if flag.startswith("-") else [])
        if near and flag not in FLAGS:
            raise ConfigurationError(f"{word}: there is no such flag.{near}")
        if (conf_folder() / "pipeline" / f"{word}.yaml").is_file():
            raise ConfigurationError(f"{word} has no key; write pipeline={word}.")
        known = option_names("pipeline")
        if found := [] if "=" in word or word.startswith("-") else difflib.get_close_matches(word, known, n=1):
            typed = [f"pipeline={found[0]}" if each == word else each for each in words]
            raise ConfigurationError(f"{word} is no pipeline; write lmtrain pipeline {shlex.join(typed)}.")


def _of_no_stage(word: str, name: str, stages: Sequence[str]) -> str:
    """Say where a word belongs: to every training or to one, or to a key with nearly its name."""
    if is_key_of_training(name):
        of_one = ", ".join(f"{stage}.{word}" for stage in stages if stage != EACH)
        return f"is of a training; write {EACH}.{word} for all of them, or for one {of_one}."
    named = ", ".join(f"{stage}.KEY" for stage in stages)
    return f"is of no stage; its keys are pipeline, run.KEY, {named}.{suggest(name, [*OWN, *stages])}"


def _with_words(pipeline: CommandPipeline, words: Sequence[str]) -> CommandPipeline:
    """Give the stages their words of the command line."""
    trained = [stage.name for stage in pipeline.stages if stage.verb == TRAIN]
    more: dict[str, list[str]] = {EACH: [], **{name: [] for name in trained}}
    for word in words:
        mark, name = word[: len(word) - len(word.lstrip("+~"))], first_name(word)
        if name not in more:
            raise ConfigurationError(f"{word} {_of_no_stage(word, name, [*more])}")
        more[name].append(mark + word.lstrip("+~").partition(".")[2])
    for name in trained:
        _refuse_places(f"{name}.", more[EACH] + more[name])
    stages = [replace(stage, words=(*stage.words, *more.get(stage.name, ()))) for stage in pipeline.stages]
    return replace(pipeline, stages=tuple(stages), words=tuple(more[EACH]))


def _refuse_places(key: str, words: Sequence[str]) -> None:
    for word in words:
        if word.lstrip("+~").partition("=")[0] in OF_A_RUN:
            raise ConfigurationError(f"{key}{word} is decided by the stage's place; leave it out.")


def _read(config: Mapping[str, Any], option: str) -> CommandPipeline:
    chosen = config.get("pipeline")
    stages = chosen.get("stages") if isinstance(chosen, dict) else None
    if not isinstance(stages, dict) or not stages:
        raise ConfigurationError(f"pipeline={option} has no stages; give it pipeline.stages.NAME.verb=train.")
    read: dict[str, PipelineStage] = {}
    for name, stage in stages.items():
        read[name] = _stage(name, stage, read)
    root, name = Path(str(config["run"]["root"])).absolute(), str(config["run"]["name"] or option)
    run_path(root, name)  # refuses a name that is none
    steps = config["pipeline"].get("preflight_steps") or 0
    if not isinstance(steps, int) or steps < 0:
        raise ConfigurationError(f"pipeline.preflight_steps={steps} is no number of steps; nearest valid: 2, or 0.")
    return CommandPipeline(name=name, root=root, stages=tuple(read.values()), preflight_steps=steps)


def _stage(name: str, stage: Any, before: Mapping[str, PipelineStage]) -> PipelineStage:
    key = f"pipeline.stages.{name}"
    if not STAGE_NAME.fullmatch(str(name)):
        raise ConfigurationError(f"{key} has a name of other characters than letters, digits, _ and -; it is a folder.")
    if not isinstance(stage, dict) or set(stage) - set(KEYS):
        near = f" Write '+{key}={{verb: train, words: [...]}}'." if isinstance(stage, str) else ""
        raise ConfigurationError(f"{key}={stage} is no stage; it has {', '.join(KEYS)}.{near}")
    verb, of = stage.get("verb"), stage.get("of")
    if not isinstance(verb, str) or verb not in VERBS:
        near = suggest(str(verb), VERBS)
        raise ConfigurationError(f"{key}.verb={verb} is no verb of a stage; valid: {', '.join(VERBS)}.{near}")
    trained = [other.name for other in before.values() if other.verb == TRAIN]
    if (of is not None or verb != TRAIN) and of not in trained:
        known = ", ".join(trained) or "none"
        raise ConfigurationError(f"{key}.of={of} is no earlier stage that trains; valid: {known}.")
    words = _words(f"{key}.words", stage.get("words") or [])
    if verb == TRAIN:
        _refuse_places(f"{key}.words: ", words)
    short = stage.get("preflight")
    preflight = None if short is None else _words(f"{key}.preflight", short)
    return PipelineStage(name=name, verb=verb, of=of, words=words, preflight=preflight)


def _words(key: str, words: Any) -> tuple[str, ...]:
    if not isinstance(words, list):
        raise ConfigurationError(f"{key}={words} is no list; write '{key}=[{words}]'.")
    if any(str(word).startswith(ALLOW_TARGET[:SHORTEST_FLAG]) for word in words):
        raise ConfigurationError(
            f"{key}: no file allows a target, or a task's code; type it: lmtrain pipeline {ALLOW_TARGET} PREFIX."
        )
    for word in map(str, words):
        if IN_A_WORD.search(word):
            raise ConfigurationError(
                f"{key}: {word} runs code or a line of shell, or sends things, which no file decides; type it instead."
            )
    return tuple(str(word) for word in words)
