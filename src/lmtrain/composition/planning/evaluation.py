"""The cost of a config's validation in a plan."""

from collections.abc import Sequence
from dataclasses import replace

from lmtrain.accounting.quantities import parse_whole
from lmtrain.accounting.training_plan.evaluation_plan import evaluation_plan
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.composition.nodes.node import Node
from lmtrain.composition.nodes.source_signatures import gives_nothing
from lmtrain.composition.run_config import RunConfig


def validated_split(config: RunConfig) -> str:
    """Return the split of the validation."""
    validation = config.callbacks.get("validation")
    return validation.get("split", "validation") if validation else "validation"


def with_evaluation(plan: Plan, config: RunConfig, *, held_out: Sequence[int]) -> Plan:
    """Count the passes over held-out text, of these tokens a source; an average of the weights reads the first."""
    keeps_average = not gives_nothing(config.weight_average.target)
    node = config.callbacks.get("validation")
    evaluation = evaluation_plan(
        node and {name: _amount(node, name) for name in ("num_passes", "every_steps", "max_tokens")},
        num_steps=plan.horizon.steps,
        run_tokens=plan.horizon.tokens,
        held_out=[*held_out, *held_out[: int(keeps_average)]],
    )
    return replace(plan, evaluation=evaluation)


def _amount(node: Node, name: str) -> int | None:
    value = node.get(name)
    return None if value is None else parse_whole(value, f"callbacks.validation.{name}")
