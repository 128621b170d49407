"""Refusals of text where only an assistant's words are learned, and of conversations without words for their turns."""

from lmtrain.accounting.options.parts import PackingFacts, SourceFacts
from lmtrain.errors import ConfigurationError
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.validators.objective import objective_facts


def require_conversations(config: RunConfig) -> None:
    """Refuse a source of text for a packing of conversations or an objective; other data tells once it is open.

    Raises:
        ConfigurationError: With the words for conversations from the same source.
    """
    packing = facts_of(config.packing.values, PackingFacts, allowed=config.allowed) or PackingFacts()
    folder, objective = config.data.node("folder"), objective_facts(config)
    source = folder and folder.node("source")
    if source is None or not (packing.needs_conversations or objective):
        return
    facts = facts_of(source.values, SourceFacts, allowed=config.allowed)
    has_own_rule = objective is not None and objective.rows_together > 1  # pairs
    if facts is None or facts.has_conversations or has_own_rule:
        return
    own = f"{facts.with_conversations} (a column of lists of {{role, content}}), " if facts.with_conversations else ""
    learns, instead = "task=sft learns only the assistant's words", ", or task=pretrain for all words of the text"
    if objective:
        learns, instead = f"task={objective.task} asks the last question", ""
    raise ConfigurationError(
        f"the source ({source.word}) is text, and {learns} of conversations; nearest valid: {own}"
        f"source=made_conversations{instead}."
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
    from lmtrain.tokenizers.chat_styles import style_names, styles_of  # numpy

    spec = config.tokenizer.checked(config.allowed).build()
    if not styles_of(spec.special_tokens):
        way = f"set {of}tokenizer.chat=true" if spec.takes_chat else "take the tokenizer of a chat model"
        raise ConfigurationError(
            f"the source ({source.word}) gives conversations, and the tokenizer ({config.tokenizer.word}) has the "
            f"special tokens of no style ({style_names()}); {way}."
        )
