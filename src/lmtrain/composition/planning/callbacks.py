"""The callbacks of a config, for plans: the facts of each."""

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.composition.nodes.facts import facts_of
from lmtrain.composition.nodes.node import Node
from lmtrain.composition.run_config import RunConfig


def callback_facts(config: RunConfig) -> list[CallbackFacts]:
    """Return the facts of the chosen callbacks, silent ones left out.

    Raises:
        ConfigurationError: A setting of one has the wrong type.
    """
    return [facts for node in config.callbacks.values() if (facts := facts_of_callback(config, node))]


def facts_of_callback(config: RunConfig, node: Node) -> CallbackFacts | None:
    """Return a callback's own facts."""
    return facts_of(node.values, CallbackFacts, allowed=config.allowed, key=node.key)
