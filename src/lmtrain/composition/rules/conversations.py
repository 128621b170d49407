"""A refusal of text where only an assistant's words are learned, decided from a config alone."""

from lmtrain.accounting.options.parts import PackingFacts, SourceFacts
from lmtrain.composition.nodes.facts import facts_of
from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError


def require_conversations(config: RunConfig) -> None:
    """Refuse a source of text for a packing of conversations; other data tells by itself, once it is open.

    Raises:
        ConfigurationError: With the words for conversations from the same source.
    """
    packing = facts_of(config.packing.values, PackingFacts, allowed=config.allowed) or PackingFacts()
    folder = config.data.node("folder")
    source = folder and folder.node("source")
    if not packing.needs_conversations or source is None:
        return
    facts = facts_of(source.values, SourceFacts, allowed=config.allowed)
    if facts is not None and not facts.has_conversations:
        own = (
            f"{facts.with_conversations} (a column of lists of {{role, content}}), " if facts.with_conversations else ""
        )
        raise ConfigurationError(
            f"the source ({source.word}) is text, and task=sft learns only the assistant's words of conversations; "
            f"nearest valid: {own}source=made_conversations, or task=pretrain for all words of the text."
        )
