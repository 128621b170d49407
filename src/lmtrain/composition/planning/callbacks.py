"""The callbacks of a config, for plans: the facts of each."""

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.composition.nodes.facts import facts_of
from lmtrain.composition.nodes.node import Node
from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError


def callback_facts(config: RunConfig) -> list[CallbackFacts]:
    """Return the facts of the chosen callbacks, silent ones left out.

    Raises:
        ConfigurationError: A setting of one has the wrong type.
    """
    return [facts for node in config.callbacks.values() if (facts := facts_of_callback(config, node))]


def facts_of_callback(config: RunConfig, node: Node) -> CallbackFacts | None:
    """Return a callback's own facts."""
    return facts_of(node.values, CallbackFacts, allowed=config.allowed, key=node.key)


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
