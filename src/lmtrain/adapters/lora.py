"""LoRA (arXiv 2106.09685) and its rank-stabilised form (arXiv 2312.03732): small factors train, the weights are frozen.

Defaults and names are PEFT's: an adapter here and one there are the same numbers.
"""

import math
from dataclasses import dataclass
from typing import final

import torch

from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.adapters.low_rank import LowRank, attach_to, layers_of, widths_of
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.models.base import LanguageModel


def none() -> None:
    """Train the weights themselves."""


@final
@dataclass(frozen=True, kw_only=True)
class Lora:
    """Factors of a rank next to linear layers of the blocks; the change is scaled by alpha / rank.

    `rank_stabilized` scales by alpha / sqrt(rank). `targets` are the last words of layers' names; None are all.
    `start` is a folder of PEFT whose factors to begin with; None begins without a change.
    """

    rank: int
    alpha: float
    dropout: float = 0.0
    rank_stabilized: bool = False
    targets: list[str] | None = None
    start: str | None = None

    def __post_init__(self) -> None:
        require_count("adapter.rank", self.rank)
        require_number("adapter.alpha", self.alpha, above=0, usual=f"{2 * self.rank}")
        require_number("adapter.dropout", self.dropout, at_least=0, below=1, usual="0.05")
        if self.targets == []:
            raise ConfigurationError("adapter.targets=[] adapts nothing. Did you mean null, for every layer?")

    @property
    def scale(self) -> float:
        """Return the factor of the change."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)

    def attach(self, model: LanguageModel, *, seed: int) -> LanguageModel:
        """Freeze a model and let its layers train by adapters, filled from the seed; on meta they stay unfilled."""
        layers = layers_of(model)
        chosen = [name for name in layers if self.targets is None or name.rpartition(".")[2] in self.targets]
        self._require_targets(list(layers))
        for parameter in model.parameters():
            parameter.requires_grad = False
        generator = torch.Generator().manual_seed(seed)
        for name in chosen:
            adapter = LowRank(
                layers[name],
                widths=widths_of(model, name),
                rank=self.rank,
                scale=self.scale,
                dropout=self.dropout,
            )
            if not adapter.down.weight.is_meta:
                adapter.initialize(generator)
            attach_to(layers[name], adapter)
        return model

    def _require_targets(self, names: list[str]) -> None:
        known = dict.fromkeys(name.rpartition(".")[2] for name in names)
        for target in self.targets or []:
            if target not in known:
                msg = f"adapter.targets holds {target}; the blocks' linear layers are {', '.join(known) or 'none'}."
                raise ConfigurationError(msg + suggest(target, [*known]))
        if not names:
            raise ConfigurationError("adapter: this model has no linear layer in its blocks. Did you mean none?")
