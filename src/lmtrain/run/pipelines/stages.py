"""A pipeline's stages, and the command of each."""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lmtrain.report.kept_flags import kept_flags
from lmtrain.run.compose.paths import MANY_OPTIONS, key_of

TRAIN, EVALUATE, EXPORT = VERBS = ("train", "evaluate", "export")
PREFLIGHT: Final = "preflight"
ANEW: Final = ("momentum_schedule=none", "weight_decay_schedule=none")  # a base's are not inherited
# A warm-up longer than a preflight would be refused.
OF_THE_LENGTH: Final = ("budget", "schedule", "momentum_schedule", "weight_decay_schedule", "logger")
SHORT: Final = ("budget=steps", "schedule=constant", *ANEW, "logger=none")
START: Final = "init_from"
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
        return {first_name(word) for word in (*self._words_of_all(stage), *stage.words)}

    def _words_of_all(self, stage: PipelineStage) -> list[str]:
        """Return the words of every training for one of them: a later one has the tokenizer and model of its base."""
        if stage.of is None or EXPERIMENT in map(first_name, (*self.words, *stage.words)):
            return [*self.words]
        return [
            word
            for word in self.words
            if first_name(word) not in HANDED_ON or f"{key_of(word)}.".startswith(OWN_ATTENTION)
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
            if not word.lstrip("+~").startswith(NOT_THE_BASE_S) and (not only or first_name(word) in only)
            if key_of(word) not in own
        ]
        anew = ANEW if stage.of else ()
        words = [word for word in stage.words if not (stage.of and word.endswith(OF_A_RUN_THERE))]
        return [*kept, *(word for word in self._words_of_all(stage) if word not in kept), *anew, *words]

    def preflight(self) -> "CommandPipeline":
        """Return the same stages in a folder inside, each as short as it can be, and untracked."""
        short_words = (*SHORT, f"budget.steps={self.preflight_steps}")

        def kept(words: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(word for word in words if first_name(word) not in OF_THE_LENGTH)

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


def first_name(word: str) -> str:
    """Return the beginning of a word's key, a group or a stage."""
    return word.lstrip("+~").partition("=")[0].partition(".")[0]
