"""The cost of a config's validation in a plan."""

from collections.abc import Sequence
from dataclasses import replace

from lmtrain.accounting.options.parts import HeldOutPasses
from lmtrain.accounting.training_plan.evaluation_plan import evaluation_plan
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.composition.nodes.source_signatures import gives_nothing
from lmtrain.composition.planning.callbacks import callback_facts
from lmtrain.composition.run_config import RunConfig


def validated_split(config: RunConfig) -> str:
    """Return the split of the validation."""
    passes = _passes(config)
    return passes.split if passes else "validation"


def with_evaluation(plan: Plan, config: RunConfig, *, held_out: Sequence[int], padding: float = 1.0) -> Plan:
    """Count the passes over held-out text, of these tokens a source; an average of the weights reads the first.

    `padding` are the tokens computed for each of the text.
    """
    keeps_average = not gives_nothing(config.weight_average.target)
    evaluation = evaluation_plan(
        _passes(config),
        num_steps=plan.horizon.steps,
        run_tokens=plan.horizon.tokens,
        held_out=[*held_out, *held_out[: int(keeps_average)]],
        padding=padding,
    )
    return replace(plan, evaluation=evaluation)


def _passes(config: RunConfig) -> HeldOutPasses | None:
    return next((facts.reads for facts in callback_facts(config) if facts.reads), None)
