"""The callbacks of a run: their facts, what a run needs of them, and the metrics that they log."""

from typing import Final

from lmtrain.accounting.budgets import limit_words, limits_of
from lmtrain.accounting.options.parts import HeldOutPasses
from lmtrain.errors import ConfigurationError, suggest, wrong
from lmtrain.run.compose.group_options import with_default
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.signatures import OURS, gives_nothing
from lmtrain.search.search_settings import KNOWN_METRICS

OF_AVERAGES: Final = tuple(metric for metric in KNOWN_METRICS if "ema_" in metric)


def held_out_passes(config: RunConfig) -> HeldOutPasses | None:
    """Return the passes over held-out text of the validation, None without one."""
    return next((facts.reads for facts in config.callback_facts.values() if facts.reads), None)


def logged_metrics(config: RunConfig) -> list[str]:
    """Return the metrics that a run logs of which a lower value is better."""
    sources: dict[str, object] = config.data.get("sources") or {}
    of_sources = [f"validation/{name}/bits_per_byte" for name in sources] if len(sources) > 1 else []
    without = OF_AVERAGES if gives_nothing(config.weight_average.target) else ()
    return [*(name for name in KNOWN_METRICS if name not in without), *of_sources]


def require_passes(config: RunConfig) -> None:
    """Refuse a callback that judges validations in a run without them."""
    facts = config.callback_facts
    judged = next(((key, said.judges) for key, said in facts.items() if said.judges), None)
    if judged is None:
        return
    judge, metric = judged
    reader = next(((key, said.reads) for key, said in facts.items() if said.reads), None)
    if reader is None:
        raise wrong(judge, "null without validations", "a callback", with_default(config.callbacks))
    key, passes = reader
    if passes.num_passes is None and passes.every_steps is None:
        raise wrong(f"{key}.every_steps", f"given, or num_passes, with {judge}", None, f"{key}.every_steps=100")
    measured = [name for name in logged_metrics(config) if name.startswith("validation/")]
    if metric not in measured and all(node.target.startswith(OURS) for node in config.callbacks.values()):
        near = suggest(metric, measured)
        raise ConfigurationError(f"{judge}.metric: must be one of {', '.join(measured)}, got {metric}.{near}")


def require_watch(config: RunConfig) -> None:
    """Refuse spikes that end a run where no callback looks at its steps."""
    spikes = config.spikes.build()
    is_watched = any(facts.answers_spikes for facts in config.callback_facts.values())
    if spikes is not None and not spikes.takes_back and not is_watched:
        rule = "rewind or skip without callbacks.training_health"
        raise wrong("spikes.then", rule, spikes.then, with_default(config.callbacks))


def require_end(config: RunConfig) -> None:
    """Refuse callbacks of a run without end: none at its budget, or none that follows the clock of a budget of time."""
    facts, limits = config.callback_facts.values(), limits_of(config.budget)
    times = {name: limits[name] for name in ("hours", "usd") if name in limits}
    if not any(each.ends_at_budget for each in facts):
        lacking, unwatched = "token_budget", limits
    elif times and not any(each.keeps_time for each in facts):
        lacking, unwatched = "time_budget", times
    else:
        return
    ends = " or ".join(limit_words(unwatched).values())
    raise ConfigurationError(f"callbacks: nothing ends the run at {ends}; keep callbacks.{lacking} of the default.")


def callback_lines(config: RunConfig) -> list[str]:
    """Return a warning of a run that saves nothing, or nothing on a signal."""
    facts = config.callback_facts.values()
    if not any(each.num_kept for each in facts):
        return ["WARNING: no callbacks.checkpoint: nothing of this run is saved, neither at its end nor on a signal."]
    if not any(each.stops_on_signals for each in facts):
        return ["WARNING: no callbacks.graceful_stop: a signal ends this run at once, its last steps unsaved."]
    return []
