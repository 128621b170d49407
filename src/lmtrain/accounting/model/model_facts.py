"""A model's facts for planning, as plain numbers: counted once on the real model, then read from a file.

Facts hold at every context length of a range where memory grows with the tokens alone (fused attention over the whole
context).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Final

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape

MEMORY: Final = ("activations", "block_workspace", "block_workspace_of_many")


@dataclass(frozen=True, kw_only=True)
class LinearBytes:
    """Bytes as a function of the sequences in a micro-batch: a fixed part, and a part for each."""

    fixed: float
    per_sequence: float

    def of(self, sequences: float) -> int:
        """Return the bytes of `sequences`, or of a slice of one."""
        return round(self.fixed + self.per_sequence * sequences)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model in one context length, precision and recomputation; `components` count parameters by part.

    Memory of the blocks' backward passes on top of activations peaks in one place for few sequences
    (`block_workspace`), in another for many (`block_workspace_of_many`): the higher one counts.
    """

    shape: ModelShape
    components: Mapping[str, int]
    parameters: TrainedParameters
    activations: LinearBytes
    block_workspace: LinearBytes
    block_workspace_of_many: LinearBytes

    @property
    def num_head(self) -> int:
        """Return the parameters of the head, tied or not."""
        return self.parameters.num_head(self.shape)

    def block_workspace_bytes(self, sequences: float) -> int:
        """Return the peak bytes of a block's backward pass beyond activations."""
        return max(0, self.block_workspace.of(sequences), self.block_workspace_of_many.of(sequences))

    def to_json(self) -> dict[str, Any]:
        """Return plain values; equal layers are counted together."""
        layers = [{"num_layers": len(list(same)), **asdict(layer)} for layer, same in groupby(self.shape.attention)]
        return asdict(self) | {"shape": asdict(self.shape) | {"attention": layers}}


def facts_from_json(content: Mapping[str, Any]) -> ModelFacts:
    """Read the values of `to_json`."""
    attention: list[AttentionShape] = []
    for layer in content["shape"]["attention"]:
        settings = {name: value for name, value in layer.items() if name != "num_layers"}
        attention += [AttentionShape(**settings)] * layer["num_layers"]
    shape: dict[str, Any] = {**content["shape"], "attention": tuple(attention)}
    return ModelFacts(
        shape=ModelShape(**shape),
        components=content["components"],
        parameters=TrainedParameters(**content["parameters"]),
        **{kind: LinearBytes(**content[kind]) for kind in MEMORY},
    )


@dataclass(frozen=True, kw_only=True)
class KnownFacts:
    """Facts counted at `context_tokens`, and the range of sequence lengths they hold for."""

    facts: ModelFacts
    context_tokens: int
    fewest_tokens: int
    most_tokens: int

    def at(self, context_tokens: int) -> ModelFacts | None:
        """Return the facts in sequences of `context_tokens`, None outside the range."""
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
