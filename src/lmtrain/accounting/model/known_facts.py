"""Facts of a model at every context length of a range, where its memory grows with the tokens alone.

This holds for fused attention over the whole context: as many tokens keep as much in one sequence as in several.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from lmtrain.accounting.model.model_facts import MEMORY, LinearBytes, ModelFacts, facts_from_json


@dataclass(frozen=True, kw_only=True)
class KnownFacts:
    """Facts counted at `context_tokens`, and the range of sequence lengths they hold for."""

    facts: ModelFacts
    context_tokens: int
    fewest_tokens: int
    most_tokens: int

    def at(self, context_tokens: int) -> ModelFacts | None:
        """Return the facts in sequences of so many tokens, None outside the range."""
        if not self.fewest_tokens <= context_tokens <= self.most_tokens:
            return None
        factor = context_tokens / self.context_tokens
        memory = {kind: getattr(self.facts, kind) for kind in MEMORY}
        grown = {kind: replace(of, per_sequence=of.per_sequence * factor) for kind, of in memory.items()}
        return replace(self.facts, **grown)


def known_facts(table: Mapping[str, Any], key: str, context_tokens: int) -> ModelFacts | None:
    """Return a table's facts of a setting at a context, None without a row."""
    for row in table.get("settings", {}).get(key, []):
        memory = {kind: {"fixed": row[kind][0], "per_sequence": row[kind][1]} for kind in MEMORY}
        known = KnownFacts(
            facts=facts_from_json(table["models"][row["model"]] | memory),
            context_tokens=row["context_tokens"],
            fewest_tokens=row["fewest_tokens"],
            most_tokens=row["most_tokens"],
        )
        if found := known.at(context_tokens):
            return found
    return None


def table_row(known: KnownFacts, *, model: str) -> dict[str, Any]:
    """Return a row of the table; facts of the model alone stand under its name, see `model_row`."""
    lines = {kind: getattr(known.facts, kind) for kind in MEMORY}
    row: dict[str, Any] = {name: value for name, value in asdict(known).items() if name != "facts"}
    return {"model": model} | row | {kind: _pair(line) for kind, line in lines.items()}


def model_row(facts: ModelFacts) -> dict[str, Any]:
    """Return a row of the model's own facts."""
    return {name: value for name, value in facts.to_json().items() if name not in MEMORY}


def _pair(line: LinearBytes) -> list[float]:
    return [line.fixed, line.per_sequence]
