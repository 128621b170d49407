"""A pipeline from its config and the arguments of a command line, and the command of each stage."""

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.report.kept_flags import kept_flags
from lmtrain.run.compose.arguments import ALLOW_TARGET, Arguments, parse_arguments
from lmtrain.run.compose.compose import configs_of
from lmtrain.run.compose.paths import is_key_of_training, key_of
from lmtrain.run.compose.untrusted_options import IN_A_WORD
from lmtrain.tracking.run_folder import run_path

TRAIN, EVALUATE, EXPORT = VERBS = ("train", "evaluate", "export")
PREFLIGHT: Final = "preflight"
NOT_INHERITED: Final = ("momentum_schedule=none", "weight_decay_schedule=none")  # of a base
# Left out of a preflight: a warm-up longer than its few steps would be refused.
OF_THE_LENGTH: Final = ("budget", "schedule", "momentum_schedule", "weight_decay_schedule", "logger")
SHORT: Final = ("budget=steps", "schedule=constant", *NOT_INHERITED, "logger=none")
START: Final = "init_from"
SHAPES: Final = ("experiment", "model", "tokenizer", "batch")  # groups that every later stage takes from its base
TOKENIZER, MODEL, EXPERIMENT = "tokenizer", "model", "experiment"
HANDED_ON: Final = (TOKENIZER, MODEL)  # groups that a run hands on whole, unless an experiment chooses them
OWN_ATTENTION: Final = f"{MODEL}.attention"  # the new run's own choice
OF_AN_EXISTING_RUN: Final = ("=inherited", "=imported")  # options that read the run
EACH: Final = "each"
ALLOW_FLAG: Final = ALLOW_TARGET[:4]  # argparse takes --al for --allow-target
STAGE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # a folder's name, not a path
OF_A_RUN: Final = ("run.name", "run.root", START, "resume")  # decided by the stage's place
OWN: Final = ("pipeline", "run", "hydra")  # keys of the pipeline itself
KEYS: Final = ("verb", "of", "words", "preflight")


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """One command; `of` is the stage with the run it starts from, scores or exports.

    `preflight` are an evaluation's arguments in the preflight, None: the same.
    """

    name: str
    verb: str
    of: str | None
    words: tuple[str, ...]
    preflight: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CommandPipeline:
    """Stages in their order, in one folder; `words` are overrides of all trainings, `allowed` the allowed targets.

    `config_dir` is the user's folder of options. `preflight_steps` is the length of each training in the preflight
    before the long work; 0 does without.
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

    def _words_of_all(self, stage: PipelineStage) -> list[str]:
        """Return the overrides of every training for one of them: a later one has its base's tokenizer and model."""
        if stage.of is None or EXPERIMENT in map(first_name, (*self.words, *stage.words)):
            return [*self.words]
        return [
            word
            for word in self.words
            if first_name(word) not in HANDED_ON or f"{key_of(word)}.".startswith(OWN_ATTENTION)
        ]

    def planned_words(self, stage: PipelineStage, *, done: Collection[str] = ()) -> list[str]:
        """Return overrides that plan a training before its starting run exists; a base in `done` has its run.

        The base's shapes stand for what its run will hand on.
        """
        words = [*self._words_of_all(stage), *stage.words]
        if stage.of is None:
            return words
        if stage.of in done:
            return [f"{START}={self.folder / stage.of}", *words]
        base, own = self.planned_words(self.stage(stage.of), done=done), {*map(key_of, words)}
        kept = [word for word in base if first_name(word) in (*SHAPES, START) and key_of(word) not in own]
        return [*kept, *NOT_INHERITED, *(word for word in words if not word.endswith(OF_AN_EXISTING_RUN))]

    def preflight(self) -> "CommandPipeline":
        """Return the same stages in a folder inside, each as short as possible, and untracked."""

        def kept(words: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(word for word in words if first_name(word) not in OF_THE_LENGTH)

        def short(stage: PipelineStage) -> PipelineStage:
            if stage.verb != TRAIN:
                return replace(stage, words=stage.words if stage.preflight is None else stage.preflight)
            return replace(stage, words=(*kept(stage.words), *SHORT, f"budget.steps={self.preflight_steps}"))

        stages, name = tuple(map(short, self.stages)), f"{self.name}/{PREFLIGHT}"
        return replace(self, name=name, stages=stages, words=kept(self.words), preflight_steps=0)

    @property
    def last_key(self) -> str:
        """Return a hash of all stages."""
        return hashlib.sha256("".join(map(self.key, self.stages)).encode()).hexdigest()[:16]

    def key(self, stage: PipelineStage) -> str:
        """Return a hash of a stage's causes: its words, its base's, an evaluation's files; its folder is not one."""
        before = self.key(self.stage(stage.of)) if stage.of else ""
        words = [*(self.words if stage.verb == TRAIN else ()), *stage.words, *self.allowed]
        if stage.verb == EVALUATE:
            files = (Path(word) for word in stage.words)
            words += [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
        return hashlib.sha256(json.dumps([before, stage.verb, words]).encode()).hexdigest()[:16]


def first_name(word: str) -> str:
    """Return the beginning of an override's key: a group or a stage."""
    return word.lstrip("+~").partition("=")[0].partition(".")[0]


def read_pipeline(words: Sequence[str]) -> CommandPipeline:
    """Compose `pipeline=NAME`, `run.KEY=VALUE`, `STAGE.KEY=VALUE` of a stage, and `each.KEY=VALUE` of all trainings."""
    arguments, of_stages = _own_arguments(words)
    composed = configs_of(arguments, config_name="pipeline")
    found = [_read(config, chosen.options["pipeline"]) for config, chosen in composed]
    if len(found) != 1:
        raise ConfigurationError("lmtrain pipeline runs one pipeline; leave out -m.")
    read = replace(found[0], allowed=tuple(arguments.allowed_targets), config_dir=arguments.config_dir)
    return _with_words(read, of_stages)


def shows_config(words: Sequence[str]) -> bool:
    """Print a pipeline's composed config if `--cfg` asks for it, and return whether it does.

    Raises:
        ConfigurationError: There are overrides of stages too, which the config does not contain.
    """
    arguments, of_stages = _own_arguments(words)
    if not arguments.show:
        return False
    if of_stages:
        raise ConfigurationError(f"--cfg prints the pipeline without its stages; leave out {shlex.join(of_stages)}.")
    configs_of(arguments, config_name="pipeline")
    return True


def _own_arguments(words: Sequence[str]) -> tuple[Arguments, list[str]]:
    """Return the arguments of the pipeline itself, and the overrides of its stages."""
    own = [word for word in words if first_name(word) in OWN or word.startswith("-") or "=" not in word]
    return parse_arguments(own, budget_group=False), [word for word in words if word not in own]


def _with_words(pipeline: CommandPipeline, words: Sequence[str]) -> CommandPipeline:
    """Give the stages their overrides of the command line."""
    trained = [stage.name for stage in pipeline.stages if stage.verb == TRAIN]
    more: dict[str, list[str]] = {EACH: [], **{name: [] for name in trained}}
    for word in words:
        mark, name = word[: len(word) - len(word.lstrip("+~"))], first_name(word)
        if name not in more:
            if is_key_of_training(name):
                raise ConfigurationError(
                    f"{word}: write {EACH}.{word} for all trainings, or {trained[0]}.{word} for one."
                )
            keys = ", ".join(f"{stage}.KEY" for stage in more)
            near = suggest(name, [*OWN, *more])
            raise ConfigurationError(f"{word}: the key must be pipeline, run.KEY, {keys}.{near}")
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
        raise ConfigurationError(f"pipeline={option} has no stages; set pipeline.stages.NAME.verb=train.")
    read: dict[str, PipelineStage] = {}
    for name, stage in stages.items():
        read[name] = _stage(name, stage, read)
    root, name = Path(str(config["run"]["root"])).absolute(), str(config["run"]["name"] or option)
    run_path(root, name)  # refuses a wrong name
    steps = config["pipeline"].get("preflight_steps") or 0
    if not isinstance(steps, int) or steps < 0:
        raise ConfigurationError(f"pipeline.preflight_steps: must be an integer >= 0 (0 disables), got {steps}.")
    return CommandPipeline(name=name, root=root, stages=tuple(read.values()), preflight_steps=steps)


def _stage(name: str, stage: Any, before: Mapping[str, PipelineStage]) -> PipelineStage:
    key = f"pipeline.stages.{name}"
    if not STAGE_NAME.fullmatch(str(name)):
        raise ConfigurationError(f"{key}: a stage's name must be letters, digits, _ and -, as it is a folder.")
    if not isinstance(stage, dict) or set(stage) - set(KEYS):
        raise ConfigurationError(f"{key}: must have the keys {', '.join(KEYS)}, got {stage}.")
    verb, of = stage.get("verb"), stage.get("of")
    if not isinstance(verb, str) or verb not in VERBS:
        near = suggest(str(verb), VERBS)
        raise ConfigurationError(f"{key}.verb: must be one of {', '.join(VERBS)}, got {verb}.{near}")
    trained = [other.name for other in before.values() if other.verb == TRAIN]
    if (of is not None or verb != TRAIN) and of not in trained:
        known = ", ".join(trained) or "none so far"
        raise ConfigurationError(f"{key}.of: must name an earlier training stage ({known}), got {of}.")
    words = _words(f"{key}.words", stage.get("words") or [])
    if verb == TRAIN:
        _refuse_places(f"{key}.words: ", words)
    short = stage.get("preflight")
    preflight = None if short is None else _words(f"{key}.preflight", short)
    return PipelineStage(name=name, verb=verb, of=of, words=words, preflight=preflight)


def _words(key: str, words: Any) -> tuple[str, ...]:
    if not isinstance(words, list):
        raise ConfigurationError(f"{key}: must be a list, got {words}; write '{key}=[{words}]'.")
    for word in map(str, words):
        if word.startswith(ALLOW_FLAG):
            raise ConfigurationError(
                f"{key}: a file must not allow targets; pass lmtrain pipeline {ALLOW_TARGET} PREFIX instead."
            )
        if IN_A_WORD.search(word):
            raise ConfigurationError(f"{key}: a file must not run code or send data ({word}); pass it instead.")
    return tuple(str(word) for word in words)
