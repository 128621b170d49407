"""What each stage of a pipeline holds: layers, cut by their planned time as a run's are, and the table and the head."""

from dataclasses import dataclass, replace
from functools import cached_property

from lmtrain.accounting.model.flops import block_forward_flops, causal_tokens
from lmtrain.accounting.model.memory import Pipeline, TrainedParameters, cut_evenly
from lmtrain.accounting.model.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class Stages:
    """A model of these parameters over the stages of a pipeline, cut by the time of a token in `context_tokens`."""

    pipeline: Pipeline
    shape: ModelShape
    parameters: TrainedParameters
    context_tokens: int

    def share_of_layers(self, stage: int) -> float:
        """Return the share of the layers on a stage."""
        if self.pipeline.num_stages == 1:
            return 1.0
        return sum(map(len, self._layers_of(stage))) / len(self.shape.attention)

    @property
    def slowness(self) -> float:
        """Return the time of the slowest stage over the mean one's: a step takes that of the slowest."""
        stages = range(self.pipeline.num_stages)
        spent = [sum(self.costs[one] for layers in self._layers_of(stage) for one in layers) for stage in stages]
        return max(spent) * len(spent) / sum(spent)

    def share_of_parameters(self, stage: int) -> float:
        """Return the share of the parameters on a stage: those of its layers, and of the table and head at the ends."""
        if self.pipeline.num_stages == 1:
            return 1.0
        first, last = self.pipeline.owner(0), self.pipeline.owner(self.pipeline.num_parts - 1)
        held = (self.parameters.num_total - self.parameters.num_outside_blocks) * self.share_of_layers(stage)
        held += self.num_at_end(is_first=True) * (stage == first)
        held += (self.num_at_end(is_first=False) + self.num_tied) * (stage == last)
        return held / self.parameters.num_total

    @property
    def fullest_share(self) -> float:
        """Return the share of the parameters on the stage with the most of them."""
        return max(map(self.share_of_parameters, range(self.pipeline.num_stages)))

    @property
    def num_tied(self) -> int:
        """Return the parameters of a tied head's table that two stages have and add the gradients of up."""
        num_head, apart = self.parameters.num_head(self.shape), self.num_at_end(is_first=False)
        is_apart = self.pipeline.owner(0) != self.pipeline.owner(self.pipeline.num_parts - 1)
        return num_head if is_apart and apart < num_head else 0

    def num_at_end(self, *, is_first: bool) -> int:
        """Return the parameters outside the layers in the first part, or in the last one without a tied head."""
        embedding = self.shape.num_embedding_parameters
        return embedding if is_first else self.parameters.num_outside_blocks - embedding

    def _layers_of(self, stage: int) -> list[range]:
        return [self._cut[part] for part in self.pipeline.parts_of(stage)]

    @cached_property
    def _cut(self) -> list[range]:
        return cut_evenly(tuple(self.costs), self.pipeline.num_parts)

    @cached_property
    def costs(self) -> list[float]:
        """Return the FLOPs of a token's forward pass through each layer, and the head with the last."""
        of_a_layer = self.parameters.num_block_matrix(self.shape) // len(self.shape.attention)
        alone = {layer: replace(self.shape, attention=(layer,)) for layer in {*self.shape.attention}}
        costs = {
            layer: float(
                block_forward_flops(
                    shape,
                    num_block_parameters=of_a_layer,
                    seen=causal_tokens(self.context_tokens, window_tokens=layer.window_tokens),
                )
            )
            for layer, shape in alone.items()
        }
        found = [costs[layer] for layer in self.shape.attention]
        return [*found[:-1], found[-1] + 2.0 * self.parameters.num_head(self.shape)]
