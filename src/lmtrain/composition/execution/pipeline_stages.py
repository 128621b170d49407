"""A pipeline's stages, read from its config, and the command of each."""

import difflib
import hashlib
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lmtrain.composition.command_line.arguments import ALLOW_TARGET, MANY_OPTIONS, Arguments, parse_arguments
from lmtrain.composition.command_line.compose import for_each_config
from lmtrain.composition.command_line.cut_values import in_quotes
from lmtrain.composition.command_line.flags import parse_flags
from lmtrain.composition.command_line.paths import conf_folder, is_key_of_training, key_of, option_names
from lmtrain.composition.command_line.typed_alone import IN_A_WORD
from lmtrain.errors import ConfigurationError, did_you_mean, suggest
from lmtrain.report.kept_flags import kept_flags
from lmtrain.tracking.run_folder import run_path

TRAIN, EVALUATE, EXPORT = VERBS = ("train", "evaluate", "export")
FLAGS: Final = ("--plan", "--json")
OWN: Final = ("pipeline", "run", "hydra")  # keys of the pipeline itself
EACH: Final = "each"
SHORTEST_FLAG: Final = 4  # letters: argparse takes --al for --allow-target
STAGE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # no path
KEYS: Final = ("verb", "of", "words", "preflight")
PREFLIGHT: Final = "preflight"
ANEW: Final = ("momentum_schedule=none", "weight_decay_schedule=none")  # a base's are not inherited
# A warm-up longer than a preflight would be refused.
OF_THE_LENGTH: Final = ("budget", "schedule", "momentum_schedule", "weight_decay_schedule", "logger")
SHORT: Final = ("budget=steps", "schedule=constant", *ANEW, "logger=none")
START: Final = "init_from"
OF_A_RUN: Final = ("run.name", "run.root", START, "resume")  # a stage's own, by its place
SHAPES: Final = ("experiment", "model", "tokenizer", "batch")  # groups that every later stage takes from its base
TOKENIZER, MODEL, EXPERIMENT = "tokenizer", "model", "experiment"
HANDED_ON: Final = (TOKENIZER, MODEL)  # groups that a run hands on whole, but where an experiment chooses
OWN_ATTENTION: Final = f"{MODEL}.attention"  # the new run's own choice
OF_A_RUN_THERE: Final = ("=inherited", "=imported")  # options that read the run
NOT_THE_BASE_S: Final = ("budget", "logger", "source", "data", "task")  # of an earlier stage's words in a plan


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """One command; `of` is the stage with the run it starts from, scores or exports.

    `preflight` are an evaluation's words before the long work, None: the same.
    """

    name: str
    verb: str
    of: str | None
    words: tuple[str, ...]
    preflight: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CommandPipeline:
    """Stages in their order, in a folder of their own; `words` are of all trainings, `allowed` the typed targets.

    `config_dir` are the person's own options. `preflight_steps` is the length of each training before the long work; 0
    does without.
    """

    name: str
    root: Path
    stages: tuple[PipelineStage, ...]
    words: tuple[str, ...] = ()
    preflight_steps: int = 0
    allowed: tuple[str, ...] = ()
    config_dir: str | None = None

    @property
    def folder(self) -> Path:
        """Return the folder of all stages."""
        return self.root / self.name

    @property
    def flags(self) -> list[str]:
        """Return the flags of each training and its plan."""
        return kept_flags(config_dir=self.config_dir, allowed=self.allowed)

    def stage(self, name: str) -> PipelineStage:
        """Return a stage by its name."""
        return next(stage for stage in self.stages if stage.name == name)

    def first_of(self, stage: PipelineStage) -> PipelineStage:
        """Return the training at the beginning of a stage: its tokenizer is that of all after it."""
        return self.first_of(self.stage(stage.of)) if stage.of else stage

    def output(self, stage: PipelineStage) -> Path:
        """Return a stage's run or folder; for an evaluation, the run it scores."""
        return self.folder / (stage.of or stage.name if stage.verb == EVALUATE else stage.name)

    def command(self, stage: PipelineStage) -> list[str]:
        """Return the words after `lmtrain`."""
        source = [] if stage.of is None else [str(self.folder / stage.of)]
        allowed = kept_flags(config_dir=None, allowed=self.allowed)
        if stage.verb == EVALUATE:
            return [EVALUATE, *source, *stage.words, *allowed]
        if stage.verb == EXPORT:
            return [EXPORT, "hf", *source, str(self.output(stage)), *stage.words, *allowed]
        place = [f"run.root={self.root}", f"run.name={self.name}/{stage.name}"]
        words = [*self._words_of_all(stage), *stage.words]
        return [TRAIN, *place, *(f"{START}={run}" for run in source), *words, *self.flags]

    def chosen_groups(self, stage: PipelineStage) -> set[str]:
        """Return the groups of a training's own words, and of those of all trainings as far as they reach it."""
        return {_first(word) for word in (*self._words_of_all(stage), *stage.words)}

    def _words_of_all(self, stage: PipelineStage) -> list[str]:
        """Return the words of every training for one of them: a later one has the tokenizer and model of its base."""
        if stage.of is None or EXPERIMENT in map(_first, (*self.words, *stage.words)):
            return [*self.words]
        return [
            word for word in self.words if _first(word) not in HANDED_ON or f"{key_of(word)}.".startswith(OWN_ATTENTION)
        ]

    def ways_to_plan(self, stage: PipelineStage, *, done: Collection[str] = ()) -> tuple[list[str], list[str]]:
        """Return a training stage's words for a plan, before its starting run exists.

        A base's words stand for what its run will hand on, and the newest run of the stages `done` for those before it.
        A stage may choose an optimizer of its own: the second way takes the base's shapes alone.
        """
        return self._planned_words(stage, done=done), self._planned_words(stage, done=done, only=(*SHAPES, START))

    def _planned_words(self, stage: PipelineStage, *, done: Collection[str], only: Sequence[str] = ()) -> list[str]:
        if stage.of in done:
            return [f"{START}={self.folder / str(stage.of)}", *self._words_of_all(stage), *stage.words]
        base = self._planned_words(self.stage(stage.of), done=done, only=only) if stage.of else []
        own = MANY_OPTIONS & {key_of(word) for word in stage.words}
        kept = [
            word
            for word in base
            if not word.lstrip("+~").startswith(NOT_THE_BASE_S) and (not only or _first(word) in only)
            if key_of(word) not in own
        ]
        anew = ANEW if stage.of else ()
        words = [word for word in stage.words if not (stage.of and word.endswith(OF_A_RUN_THERE))]
        return [*kept, *(word for word in self._words_of_all(stage) if word not in kept), *anew, *words]

    def preflight(self) -> "CommandPipeline":
        """Return the same stages in a folder inside, each as short as it can be, and untracked."""
        short_words = (*SHORT, f"budget.steps={self.preflight_steps}")

        def kept(words: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(word for word in words if _first(word) not in OF_THE_LENGTH)

        def short(stage: PipelineStage) -> PipelineStage:
            if stage.verb != TRAIN:
                return replace(stage, words=stage.words if stage.preflight is None else stage.preflight)
            return replace(stage, words=(*kept(stage.words), *short_words))

        stages, name = tuple(map(short, self.stages)), f"{self.name}/{PREFLIGHT}"
        return replace(self, name=name, stages=stages, words=kept(self.words), preflight_steps=0)

    @property
    def last_key(self) -> str:
        """Return a hash of all stages."""
        return hashlib.sha256("".join(map(self.key, self.stages)).encode()).hexdigest()[:16]

    def key(self, stage: PipelineStage) -> str:
        """Return a hash of a stage's causes, wherever its folder is: its words, its base's, an evaluation's files."""
        before = self.key(self.stage(stage.of)) if stage.of else ""
        words = [*(self.words if stage.verb == TRAIN else ()), *stage.words, *self.allowed]
        words += filter(None, map(_content, stage.words)) if stage.verb == EVALUATE else ()
        return hashlib.sha256(json.dumps([before, stage.verb, words]).encode()).hexdigest()[:16]


def _content(word: str) -> str:
    """Return a hash of a named file's content, nothing of another word."""
    path = Path(word)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


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
    own = [word for word in words if _first(word) in (*OWN, ALLOW_TARGET) or word.startswith("-") or "=" not in word]
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


def _first(word: str) -> str:
    return word.lstrip("+~").partition("=")[0].partition(".")[0]


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
        mark, name = word[: len(word) - len(word.lstrip("+~"))], _first(word)
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
        near = f" Its value is a text; write '+{key}={in_quotes(stage)}'." if str(stage).startswith("{") else ""
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
