"""The cost of a config's validation in a plan, and the steps that a budget of time has left for it."""

from collections.abc import Sequence
from dataclasses import replace

from lmtrain.accounting.budgets import Horizon
from lmtrain.accounting.training_plan.evaluation_plan import evaluation_plan
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.source_signatures import gives_nothing
from lmtrain.run.validators.callbacks import held_out_passes


def validated_split(config: RunConfig) -> str:
    """Return the split of the validation."""
    passes = held_out_passes(config)
    return passes.split if passes else "validation"


def with_evaluation(
    plan: Plan, config: RunConfig, *, held_out: Sequence[int], padding: float = 1.0, decides_end: bool = True
) -> Plan:
    """Count the passes over held-out text, of these tokens a source; an average of the weights reads the first.

    `padding` are the tokens computed for each of the text. A budget of time is left with steps and passes that it is
    enough for; where the speed does not decide the end, they only size the passes.
    """
    keeps_average = not gives_nothing(config.weight_average.target)
    passes, texts = held_out_passes(config), [*held_out, *held_out[: int(keeps_average)]]
    read = plan.done.read_tokens
    goes_on_reading = read if read is not None and read < sum(held_out[:1]) else None  # else the whole of it was read

    def until(end: Horizon) -> Plan:
        most = end.tokens if goes_on_reading is None else goes_on_reading
        found = evaluation_plan(passes, num_steps=end.steps, run_tokens=most, held_out=texts, padding=padding)
        return replace(plan, horizon=end, evaluation=found)

    def seconds_to(steps: int) -> float:
        return until(plan.horizon.ending_at(steps)).seconds or 0.0

    whole = until(plan.horizon.within_time(seconds_to, done=plan.done))
    return whole if decides_end else replace(whole, horizon=plan.horizon, expected_tokens=whole.horizon.tokens)
