"""A model's facts for planning, as plain numbers: counted once on the real model, then read from a file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape

MEMORY: Final = ("activations", "workspace", "workspace_of_many", "block_workspace", "block_workspace_of_many")


@dataclass(frozen=True, kw_only=True)
class LinearBytes:
    """Bytes as a function of the sequences in a micro-batch: a fixed part, and a part for each."""

    fixed: float
    per_sequence: float

    def of(self, sequences: float) -> int:
        """Return the bytes of so many sequences, or of a slice of one."""
        return round(self.fixed + self.per_sequence * sequences)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model in one context length, precision, recomputation and loss; `components` count parameters by part.

    Memory on top of activations peaks in one place for few sequences (`workspace`), in another for many
    (`workspace_of_many`): the higher one counts. `block_workspace` and `block_workspace_of_many` are the same of the
    blocks' backward passes, without the loss.
    """

    shape: ModelShape
    components: Mapping[str, int]
    parameters: TrainedParameters
    activations: LinearBytes
    workspace: LinearBytes
    workspace_of_many: LinearBytes
    block_workspace: LinearBytes
    block_workspace_of_many: LinearBytes

    def workspace_bytes(self, sequences: float) -> int:
        """Return the peak bytes of a micro-batch beyond its activations."""
        return max(0, self.workspace.of(sequences), self.workspace_of_many.of(sequences))

    def block_workspace_bytes(self, sequences: float) -> int:
        """Return the peak bytes of a block's backward pass beyond activations."""
        own = max(0, self.block_workspace.of(sequences), self.block_workspace_of_many.of(sequences))
        return min(own, self.workspace_bytes(sequences))

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
