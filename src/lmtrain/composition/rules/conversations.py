"""Refusals of text where only an assistant's words are learned, and of conversations without words for their turns."""

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


def require_chat_tokens(config: RunConfig, *, of: str = "") -> None:
    """Refuse conversations for a tokenizer without the special tokens of a style; `of` goes before the nearest words.

    Raises:
        ConfigurationError: It has them not, or cannot be built.
    """
    folder = config.data.node("folder")
    source = folder and folder.node("source")
    facts = source and facts_of(source.values, SourceFacts, allowed=config.allowed)
    if not source or facts is None or not facts.has_conversations or config.tokenizer.get("chat") is True:
        return
    from lmtrain.tokenizers.chat_styles import has_a_style, style_names  # numpy

    spec = config.tokenizer.checked(config.allowed).build()
    if not has_a_style(spec.special_tokens):
        way = f"set {of}tokenizer.chat=true" if spec.takes_chat else "take the tokenizer of a chat model"
        raise ConfigurationError(
            f"the source ({source.word}) gives conversations, and the tokenizer ({config.tokenizer.word}) has the "
            f"special tokens of no style ({style_names()}); {way}."
        )
