"""The README.md of an exported model: measured facts of the run alone."""

from dataclasses import dataclass, field

from lmtrain.accounting.quantities import format_count


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The known origin of a model; None and empty are unknown, and are told as such.

    `metrics` are of the model's own weights; `is_averaged` where these are the moving average of a run's.
    """

    name: str
    num_parameters: int
    num_active_parameters: int
    context_tokens: int
    step: int | None = None
    tokens: int | None = None
    data_name: str | None = None
    data_fingerprint: str | None = None
    tokenizer_fingerprint: str | None = None
    code_version: str | None = None
    imported_from: str | None = None
    is_averaged: bool = False
    metrics: dict[str, float] = field(default_factory=dict[str, float])


def model_card(facts: CardFacts, *, architecture: str, dtype: str, has_own_code: bool = False) -> str:
    """Write the card; a model `has_own_code` where transformers has none for it."""
    trust = ", trust_remote_code=True" if has_own_code else ""
    rows = [f"| {name} | {value} |" for name, value in _rows(facts, architecture, dtype)]
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: text-generation",
            "tags: [lmtrain]",
            "---",
            f"# {facts.name}",
            "",
            "A language model trained with lmtrain. Licence: unknown; whoever publishes it has to choose one, with the",
            "licence of its training data in mind. It predicts text; it was not made to be helpful, true or harmless.",
            "",
            "| fact | value |",
            "|---|---|",
            *rows,
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'model = AutoModelForCausalLM.from_pretrained("."{trust})',
            f'tokenizer = AutoTokenizer.from_pretrained("."{trust})',
            'ids = tokenizer("Once", return_tensors="pt").input_ids',
            "print(tokenizer.decode(model.generate(ids, max_new_tokens=50)[0]))",
            "```",
            "",
        ]
    )


def _rows(facts: CardFacts, architecture: str, dtype: str) -> list[tuple[str, str]]:
    rows = [
        ("architecture", architecture),
        ("parameters", f"{facts.num_parameters:,}"),
        ("context", f"{facts.context_tokens:,} tokens"),
        ("dtype", dtype),
        ("trained here on", _amount(facts)),
        ("data", facts.data_name or "unknown"),
        ("data fingerprint", _code(facts.data_fingerprint)),
        ("tokenizer fingerprint", _code(facts.tokenizer_fingerprint)),
        ("lmtrain", facts.code_version or "unknown"),
    ]
    if facts.num_active_parameters != facts.num_parameters:
        rows.insert(2, ("of which a token meets", f"{facts.num_active_parameters:,}"))
    if facts.imported_from is not None:
        rows.append(("weights began as", facts.imported_from))
    if facts.is_averaged:
        rows.append(("weights", "the moving average of the training's"))
    if facts.step is not None and not facts.metrics:
        rows.append(("held-out text", "not scored with these weights"))
    return rows + [(name, f"{value:.4f}") for name, value in sorted(facts.metrics.items())]


def _amount(facts: CardFacts) -> str:
    if facts.tokens is None or facts.step is None:
        return "nothing: imported weights as they were"
    return f"{facts.tokens:,} tokens, {format_count(facts.step, 'optimizer step')}"


def _code(text: str | None) -> str:
    return "unknown" if text is None else f"`{text}`"
