"""The callbacks of a config: the facts of each, and what a run needs of them."""

from collections.abc import Callable, Iterable, Sequence

from lmtrain.accounting.budgets import limit_words, limits_of
from lmtrain.accounting.options.parts import CallbackFacts, HeldOutPasses
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.paths import key_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.schema.node import Node
from lmtrain.run.validators.passes import patience_line


def callback_facts(config: RunConfig) -> list[CallbackFacts]:
    """Return the facts of the chosen callbacks, silent ones left out.

    Raises:
        ConfigurationError: A setting of one has the wrong type.
    """
    return [facts for node in config.callbacks.values() if (facts := facts_of_callback(config, node))]


def facts_of_callback(config: RunConfig, node: Node) -> CallbackFacts | None:
    """Return a callback's own facts."""
    return facts_of(node.values, CallbackFacts, allowed=config.allowed, key=node.key)


def held_out_passes(config: RunConfig) -> HeldOutPasses | None:
    """Return the passes over held-out text of the validation, None without one."""
    return next((facts.reads for facts in callback_facts(config) if facts.reads), None)


def require_watch(config: RunConfig) -> None:
    """Refuse spikes that end a run, or take it back, where nobody looks at its steps.

    Raises:
        ConfigurationError: No callback answers them.
    """
    spikes = config.spikes.build()
    if (
        spikes is not None
        and not spikes.takes_back
        and not any(facts.answers_spikes for facts in callback_facts(config))
    ):
        raise ConfigurationError(
            f"spikes.then={spikes.then} has no effect without callbacks.training_health, which answers spikes; nearest "
            "valid: the default callbacks."
        )


def require_end(config: RunConfig, typed: Sequence[str]) -> None:
    """Refuse callbacks of a run without end; `typed` are the words of the command.

    Raises:
        ConfigurationError: None ends the run at its budget, or none follows the clock under a budget of time.
    """
    facts = callback_facts(config)
    if not any(each.ends_at_budget for each in facts):
        limits = limit_words(limits_of(config.budget))
        raise _endless(config, typed, limits.values(), lacking=lambda each: each.ends_at_budget)
    of_time = {name: value for name, value in (("hours", config.budget.hours), ("usd", config.budget.usd)) if value}
    if of_time and not any(each.keeps_time for each in facts):
        raise _endless(config, typed, limit_words(of_time).values(), lacking=lambda each: each.keeps_time)


def callback_lines(config: RunConfig, num_steps: int) -> list[str]:
    """Return lines on callbacks without an effect in a run of so many steps, and on nothing being saved."""
    facts = callback_facts(config)
    saves = None
    if not any(each.num_kept for each in facts):
        saves = "WARNING: no callbacks.checkpoint: nothing of this run is saved, neither at its end nor on a signal."
    elif not any(each.stops_on_signals for each in facts):
        saves = "WARNING: no callbacks.graceful_stop: a signal ends this run at once, its last steps unsaved."
    return [line for line in (saves, patience_line(config, num_steps)) if line]


def _endless(
    config: RunConfig, typed: Sequence[str], limits: Iterable[str], *, lacking: Callable[[CallbackFacts], bool]
) -> ConfigurationError:
    """Name the word that took the end away, and the nearest one with it."""
    from lmtrain.run.compose.group_options import beside_ordinary, file_values  # where one is wrong alone

    def says(name: str) -> bool:
        facts = facts_of(file_values(f"callbacks={name}")[name], CallbackFacts)
        return facts is not None and lacking(facts)

    keys = [f"callbacks.{name}" for name in file_values("callbacks=default")["defaults"] if says(name)]
    told = f"nothing that ends the run at {' or '.join(limits)}"
    removed = next((word for word in typed if key_of(word) in keys), None)
    if removed is not None:
        return ConfigurationError(f"{removed} leaves {told}; nearest valid: without this word.")
    chosen = next((word for word in reversed(typed) if key_of(word) == "callbacks"), "callbacks")
    return ConfigurationError(
        f"{chosen} has {told}; nearest valid: {beside_ordinary(config.callbacks)}, which has {' and '.join(keys)}."
    )
