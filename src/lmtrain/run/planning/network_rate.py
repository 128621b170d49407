"""The network that a run needs between nodes, where its rate is not known, and how to measure it."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.accounting.training_plan.step_time import PlannedModel, modelled_step
from lmtrain.run.run_config import RunConfig

RATES: Final = [10 ** (step / 20) * 1e9 for step in range(85)]  # 1 GB/s to 16 TB/s, an eighth more each
NEARLY: Final = 1.05  # of the step with the fastest network
MEASURE: Final = "`srun lmtrain doctor --nodes` measures it, and writes a cluster for plans"


def network_line(config: RunConfig, plan: Plan, setting: Setting) -> str | None:
    """Return a note on the rate that a plan over nodes would need; None where the rate is known, or the device is not.

    With a stated utilization it is the rate at which the step takes the stated time.
    """
    cluster, sent = config.cluster, plan.communication
    if cluster.num_nodes == 1 or cluster.node_bytes_per_second is not None or cluster.known_device is None or not sent:
        return None
    facts = setting.facts
    model = PlannedModel(shape=facts.shape, parameters=facts.parameters, flops=plan.flops_per_token)

    def seconds(rate: float) -> float:
        reached = replace(setting, cluster=replace(cluster, network_bytes_per_second=rate))
        step = modelled_step(reached, plan.batch, model, sent.groups)
        return step.seconds if step else math.inf

    start = "time: the network between nodes is not known"
    if cluster.mfu and plan.speed and (rate := _first(seconds, plan.speed.step_seconds)):
        return f"{start}; cluster.mfu={cluster.mfu:g} is right at {rate / 1e9:,.3g} GB/s a node; {MEASURE}"
    if rate := _first(seconds, NEARLY * seconds(RATES[-1])):
        return f"{start}; from {rate / 1e9:,.3g} GB/s a node on, few messages are waited for; {MEASURE}"
    return None


def _first(seconds: Callable[[float], float], most: float) -> float | None:
    """Return the least rate with a step of at most `most` seconds, None without one."""
    return next((rate for rate in RATES if seconds(rate) <= most), None)
