"""The callbacks of conf/callbacks/default.yaml, all at once."""

from importlib import import_module
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from tests.test_step_guards import CountedSteps

CONF = Path(__file__).parents[2] / "conf" / "callbacks"


def default_callbacks(context, *, log_every_steps, **replaced):
    """Build what the files say, in their order; keywords replace settings of a callback."""
    names = OmegaConf.load(CONF / "default.yaml").defaults
    health = {"recompute_every_steps": None, "compare_replicas_every_steps": None}
    scalars = {"run": {"log_every_steps": log_every_steps}, "seed": 7, "health": health}
    callbacks = {}
    for name in names:
        nodes = OmegaConf.merge(scalars, OmegaConf.load(CONF / f"{name}.yaml"))
        settings = cast("dict[str, Any]", OmegaConf.to_container(nodes, resolve=True))[name] | replaced.get(name, {})
        module, _, kind = settings.pop("_target_").rpartition(".")
        callbacks[name] = getattr(import_module(module), kind)(**settings, context=context)
    return callbacks


def test_no_step_between_log_points_asks_the_device_for_a_value(make_run, monkeypatch):
    run = make_run(steps=20, peak_flops=1e15, usd_per_gpu_hour=2.0)
    replaced = {
        "validation": {"num_passes": 1},
        "checkpoint": {"every_steps": 10, "every_seconds": None},
        "text_samples": {"num_new_tokens": 3},
    }
    callbacks = default_callbacks(run.context, log_every_steps=5, **replaced)
    counted = CountedSteps(monkeypatch)
    run.fit(*callbacks.values(), counted)
    assert {step for step, num in counted.by_step.items() if num} == {5, 10, 15, 20}
    assert counted.by_step[5] == 1  # for the log and training health
