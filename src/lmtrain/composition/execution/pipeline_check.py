"""A pipeline's trainings are looked at before the first of them runs: a typing error would cost the hours before it."""

from typing import Final

from lmtrain.composition.execution.pipeline_run import done_stages
from lmtrain.composition.execution.pipeline_stages import TRAIN, CommandPipeline, PipelineStage
from lmtrain.errors import ConfigurationError

OF_A_BASE: Final = "inherited"  # an option that asks for a run not there yet


def require_trainings(pipeline: CommandPipeline) -> None:
    """Refuse a training that cannot be planned, before the earlier stages run; finished ones are not looked at.

    Raises:
        ConfigurationError: The first one, in the words that its own command would be refused with.
    """
    done = done_stages(pipeline)
    for stage in pipeline.stages:
        if stage.verb == TRAIN and stage.name not in done and (problem := _problem(pipeline, stage)):
            raise ConfigurationError(f"stage {stage.name}: {problem}")


def _problem(pipeline: CommandPipeline, stage: PipelineStage) -> str | None:
    """Return the fault of a stage's own words, None without one."""
    from lmtrain.composition.planning.plan import planned_runs

    if any(word.endswith(f"={OF_A_BASE}") for word in pipeline.command(stage)):
        return None
    problem: str | None = None
    for words in pipeline.ways_to_plan(stage):
        try:
            planned_runs([*words, *pipeline.flags])
        except ConfigurationError as refused:
            problem = str(refused)
        else:
            return None
    return problem
