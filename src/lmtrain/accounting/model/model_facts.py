"""A model's facts for planning, as plain numbers: counted once on the real model, then read from a file.

Facts hold at every context length of a range where memory grows with the tokens alone (fused attention over the whole
context).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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


def known_facts(table: Mapping[str, Any], key: str, context_tokens: int) -> ModelFacts | None:
    """Return a table's facts of a setting in sequences of `context_tokens`, None without a row for that length.

    A row is counted at one length and holds for a range of them.
    """
    for row in table.get("settings", {}).get(key, []):
        if row["fewest_tokens"] <= context_tokens <= row["most_tokens"]:
            factor = context_tokens / row["context_tokens"]
            memory = {kind: {"fixed": row[kind][0], "per_sequence": row[kind][1] * factor} for kind in MEMORY}
            return facts_from_json(table["models"][row["model"]] | memory)
    return None
