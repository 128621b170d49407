"""torchtitan without a GPU: its Llama 3 and its loss in a hand-written loop.

Its Trainer takes its device to be cuda all the same, and the backward pass of FlexAttention is not there on a CPU: its
own ScaledDotProductAttention, over rows, takes the place.
"""

from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.train_step.task import LOG_EVERY_STEPS, Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.train_step.hand_loop import autocast, train

GIVEN = (
    "its Llama 3 and CrossEntropyLoss, blocks and loss compiled as its compile.enable does; its "
    "ScaledDotProductAttention over rows, since FlexAttention has no backward pass on a CPU; a hand-written loop with "
    "fused AdamW in place of its Trainer, which wants a GPU"
)


def run(task: Task, turns: Turns, *, config: Any) -> None:
    """Train the model of a config of its."""
    from torchtitan.components.loss import CrossEntropyLoss  # pyright: ignore[reportMissingImports]  # of the checkout
    from torchtitan.config import CompileConfig  # pyright: ignore[reportMissingImports]

    turns.say(given=GIVEN)
    model = config.build()
    model.init_states()
    turns.say(num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    compiling = CompileConfig(enable=task.is_compiled)
    loss = CrossEntropyLoss(CrossEntropyLoss.Config(global_vocab_size=task.vocab_size), compile_config=compiling)
    for block in model.layers.values():
        block.attention.inner_attention = attention_over_rows(task)
        if task.is_compiled:
            block.compile(backend=compiling.backend, fullgraph=True)
    positions = torch.arange(task.context_tokens).repeat(task.num_sequences)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = (tokens.flatten() for tokens in batch)
        return loss(model(inputs, positions), targets, task.tokens_per_step)[0]

    train(task, turns, model, loss_of, casting=autocast(task), read_every_steps=LOG_EVERY_STEPS)


def attention_over_rows(task: Task) -> Any:
    """Return its attention by torch's kernel, for q, k and v [B T, H, K] of rows that follow one another."""
    from torchtitan.models.common.attention import (  # pyright: ignore[reportMissingImports]  # of the checkout
        ScaledDotProductAttention,
    )

    class OverRows(ScaledDotProductAttention):  # pyright: ignore[reportUntypedBaseClass]
        def forward(self, *heads: Tensor, attention_masks: None, **settings: Any) -> Tensor:
            del attention_masks
            rows = [each.unflatten(0, (task.num_sequences, task.context_tokens)) for each in heads]
            return super().forward(*rows, **settings).flatten(0, 1)

    return OverRows(ScaledDotProductAttention.Config())
