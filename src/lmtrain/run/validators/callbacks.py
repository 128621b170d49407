"""The callbacks of a run: their facts, what a run needs of them, and the metrics that they log."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lmtrain.accounting.budgets import limit_words, limits_of
from lmtrain.accounting.options.parts import CallbackFacts, HeldOutPasses
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.run.compose.group_options import beside_ordinary, file_values
from lmtrain.run.compose.paths import key_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.signatures import OURS, gives_nothing
from lmtrain.search.search_settings import KNOWN_METRICS

OF_AVERAGES: Final = tuple(metric for metric in KNOWN_METRICS if "ema_" in metric)


def facts_of_callback(config: RunConfig, node: Node) -> CallbackFacts | None:
    """Return the facts that a callback's module states, None where it states none."""
    return facts_of(node.values, CallbackFacts, allowed=config.allowed, key=node.key)


def facts_by_key(config: RunConfig) -> dict[str, CallbackFacts]:
    """Return the facts of the callbacks by their dotted keys.

    Raises:
        ConfigurationError: A setting of one has the wrong type.
    """
    found = {node.key: facts_of_callback(config, node) for node in config.callbacks.values()}
    return {key: facts for key, facts in found.items() if facts is not None}


def callback_facts(config: RunConfig) -> list[CallbackFacts]:
    """Return the facts of the callbacks that state any."""
    return [*facts_by_key(config).values()]


def held_out_passes(config: RunConfig) -> HeldOutPasses | None:
    """Return the passes over held-out text of the validation, None without one."""
    return next((facts.reads for facts in callback_facts(config) if facts.reads), None)


def logged_metrics(config: RunConfig) -> list[str]:
    """Return the metrics that a run logs of which a lower value is better."""
    sources: dict[str, object] = config.data.get("sources") or {}
    of_sources = [f"validation/{name}/bits_per_byte" for name in sources] if len(sources) > 1 else []
    known = [name for name in KNOWN_METRICS if not (name in OF_AVERAGES and keeps_no_average(config))]
    return [*known, *of_sources]


def keeps_no_average(config: RunConfig) -> bool:
    """Return whether a run keeps no average of its weights to score."""
    return gives_nothing(config.weight_average.target)


def require_passes(config: RunConfig) -> None:
    """Refuse a callback that judges validations in a run without them.

    Raises:
        ConfigurationError: Nothing is validated during the run, or it does not measure the judged metric.
    """
    facts = facts_by_key(config)
    judged = next(((key, said.judges) for key, said in facts.items() if said.judges), None)
    if judged is None:
        return
    judge, metric = judged
    reader = next(((key, said.reads) for key, said in facts.items() if said.reads), None)
    if reader is None:
        raise ConfigurationError(
            f"{judge} needs validations, and this run has none; nearest valid: {beside_ordinary(config.callbacks)}, "
            "which has callbacks.validation."
        )
    key, passes = reader
    if passes.num_passes is None and passes.every_steps is None:
        raise ConfigurationError(
            f"{judge} needs validations during the run, and {key} measures before and after it only; "
            f"set {key}.num_passes or {key}.every_steps."
        )
    measured = [name for name in logged_metrics(config) if name.startswith("validation/")]
    if metric not in measured and all(node.target.startswith(OURS) for node in config.callbacks.values()):
        raise ConfigurationError(
            f"{judge}.metric={metric} must be one of {', '.join(measured)}.{suggest(metric, measured)}"
        )


def require_watch(config: RunConfig) -> None:
    """Refuse spikes that end a run where no callback looks at its steps.

    Raises:
        ConfigurationError: No callback answers them.
    """
    spikes = config.spikes.build()
    is_watched = any(facts.answers_spikes for facts in callback_facts(config))
    if spikes is not None and not spikes.takes_back and not is_watched:
        raise ConfigurationError(
            f"spikes.then={spikes.then} has no effect without callbacks.training_health; nearest valid: the default "
            "callbacks."
        )


def require_end(config: RunConfig, typed: Sequence[str]) -> None:
    """Refuse callbacks of a run without end; `typed` are the words of the command.

    Raises:
        ConfigurationError: None ends the run at its budget, or none follows the clock under a budget of time.
    """
    facts = callback_facts(config)
    if not any(each.ends_at_budget for each in facts):
        limits = limit_words(limits_of(config.budget))
        raise _endless(config, typed, limits.values(), ends=lambda each: each.ends_at_budget)
    of_time = {name: value for name, value in (("hours", config.budget.hours), ("usd", config.budget.usd)) if value}
    if of_time and not any(each.keeps_time for each in facts):
        raise _endless(config, typed, limit_words(of_time).values(), ends=lambda each: each.keeps_time)


def _endless(
    config: RunConfig, typed: Sequence[str], limits: Iterable[str], *, ends: Callable[[CallbackFacts], bool]
) -> ConfigurationError:
    """Name the word that took the end away, and the nearest one with it."""

    def ends_runs(name: str) -> bool:
        facts = facts_of(file_values(f"callbacks={name}")[name], CallbackFacts)
        return facts is not None and ends(facts)

    keys = [f"callbacks.{name}" for name in file_values("callbacks=default")["defaults"] if ends_runs(name)]
    lacks = f"nothing that ends the run at {' or '.join(limits)}"
    removed = next((word for word in typed if key_of(word) in keys), None)
    if removed is not None:
        return ConfigurationError(f"{removed} leaves {lacks}; nearest valid: without this word.")
    chosen = next((word for word in reversed(typed) if key_of(word) == "callbacks"), "callbacks")
    return ConfigurationError(
        f"{chosen} has {lacks}; nearest valid: {beside_ordinary(config.callbacks)}, which has {' and '.join(keys)}."
    )


def callback_lines(config: RunConfig, num_steps: int) -> list[str]:
    """Return warnings of callbacks without an effect in a run of `num_steps`, and of a run that saves nothing."""
    facts = callback_facts(config)
    saves = None
    if not any(each.num_kept for each in facts):
        saves = "WARNING: no callbacks.checkpoint: nothing of this run is saved, neither at its end nor on a signal."
    elif not any(each.stops_on_signals for each in facts):
        saves = "WARNING: no callbacks.graceful_stop: a signal ends this run at once, its last steps unsaved."
    return [line for line in (saves, patience_line(config, num_steps)) if line]


def patience_line(config: RunConfig, num_steps: int) -> str | None:
    """Return a warning of a patience longer than the validations of a run of `num_steps`; None without."""
    facts = facts_by_key(config)
    passes = next((said.reads for said in facts.values() if said.reads), None)
    patient = next(((key, said.patience) for key, said in facts.items() if said.patience is not None), None)
    if passes is None or patient is None:
        return None
    (key, patience), during = patient, passes.during(num_steps)
    if patience < during:
        return None
    fix = f"{key}.patience={during - 1}" if during > 1 else "more validations, or a longer budget"
    return (
        f"WARNING: {key}.patience={patience} never ends this run early: of its {format_count(during, 'validation')} "
        f"after the first step the last one is at its end; nearest with an effect: {fix}."
    )
