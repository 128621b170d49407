"""The plan of a pipeline: trainings by their own plans, and preparations, evaluations and exports at those rates."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from lmtrain.accounting.training_plan.stage_plan import PipelinePlan, StagePlan, done_stage
from lmtrain.doctor.disk import nearest_folder
from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.run.pipelines.check import StageReaders
from lmtrain.run.pipelines.run import EndedStage, done_stages, has_preflight_ahead
from lmtrain.run.pipelines.stages import (
    EVALUATE,
    PREFLIGHT,
    TRAIN,
    CommandPipeline,
    PipelineStage,
)
from lmtrain.run.pipelines.starts import require_same_start, stage_check
from lmtrain.run.planning.stage_plans import PlannedTraining, evaluated, exported, planned_training

PREPARE: Final = "prepare"


def plan_pipeline(read: CommandPipeline, readers: StageReaders) -> PipelinePlan:
    """Return the plan of every stage ahead, those of the data first where a preflight needs all of it."""
    stages = [*_StagesAhead(read, readers).plans()]
    if has_preflight_ahead(read):
        short = [one for one in _StagesAhead(read.preflight(), readers).plans() if one.verb != PREPARE]
        data = [one for one in stages if one.verb == PREPARE]
        stages = [*data, _together(short), *(one for one in stages if one.verb != PREPARE)]
    free = shutil.disk_usage(nearest_folder(read.folder)).free
    return PipelinePlan(name=read.name, stages=stages, free_bytes=free)


def _together(short: Sequence[StagePlan]) -> StagePlan:
    """Return a preflight as one stage, its files cleared away afterwards."""
    whole = PipelinePlan(name=PREFLIGHT, stages=short)
    found = next((f"{one.name}: {one.problem}" for one in short if one.problem), "")
    return StagePlan(
        name=PREFLIGHT,
        verb=PREFLIGHT,
        seconds=whole.seconds,
        usd=whole.usd,
        disk_bytes=whole.disk_bytes,
        kept_bytes=0,
        basis="assumed",
        reasons=("every stage in short, pipeline.preflight_steps of each training; cleared away",),
        problem=found,
    )


@dataclass(frozen=True)
class _StagesAhead:
    """The stages of a pipeline; `planned` are its trainings as far as a stage has needed their plans.

    `prepared` are the keys of data that an earlier stage prepares.
    """

    read: CommandPipeline
    readers: StageReaders
    planned: dict[str, PlannedTraining | str] = field(default_factory=dict[str, PlannedTraining | str])
    prepared: set[str] = field(default_factory=set[str])

    @cached_property
    def done(self) -> Mapping[str, EndedStage]:
        """Return the stages that have ended."""
        return done_stages(self.read)

    def plans(self) -> Iterator[StagePlan]:
        """Yield a plan for each stage, before a training's the preparation of its data."""
        for stage in self.read.stages:
            if stage.name in self.done:
                yield done_stage(stage.name, stage.verb)
                continue
            training = self.training(stage.name if stage.verb == TRAIN else stage.of or "")
            if isinstance(training, str):
                problem = training if stage.verb == TRAIN else f"needs the plan of {stage.of}"
                yield StagePlan(name=stage.name, verb=stage.verb, problem=problem)
            else:
                yield from self._plans(stage, training)

    def training(self, name: str) -> PlannedTraining | str:
        """Return the plan of a training, or the reason why there is none."""
        if name not in self.planned:
            self.planned[name] = self._training(self.read.stage(name))
        return self.planned[name]

    def _training(self, stage: PipelineStage) -> PlannedTraining | str:
        ways = self.read.ways_to_plan(stage, done=self.done)
        base, check = self.training(stage.of) if stage.of else None, stage_check(self.read, stage)
        refused = ""
        for words in ways[:1] if stage.of in self.done else ways:  # of a run that is there both are the same
            try:
                planned = planned_training([*words, *self.read.flags], learns=stage.of is None, check=check)
                if isinstance(base, PlannedTraining):
                    require_same_start(self.read, stage, planned.config, base=base.config)
            except LMTRAIN_ERRORS as problem:
                refused = str(problem)
            else:
                return planned
        return refused

    def _plans(self, stage: PipelineStage, training: PlannedTraining) -> Iterator[StagePlan]:
        """Yield the plans of one stage ahead."""
        words = self.read.command(stage)[1:]
        try:
            if stage.verb == TRAIN:
                if (data := training.data()) and training.data_key not in self.prepared:
                    self.prepared.add(training.data_key)
                    yield replace(data, name=f"{stage.name}: data", verb=PREPARE)
                plan = training.steps()
            elif stage.verb == EVALUATE:
                plan = evaluated(training, self.readers.evaluation(words))
            else:
                plan = exported(training, bytes_per_value=self.readers.export(words))
        except LMTRAIN_ERRORS as problem:
            plan = StagePlan(problem=str(problem))
        yield replace(plan, name=stage.name, verb=stage.verb)
