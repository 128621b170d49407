"""OLMo-core: its Llama-style Transformer from a checkout, in a hand-written loop.

Its Trainer wants a process group and its own indexed data set; the model, its fused loss and block-wise compilation are
its own.
"""

import sys

import torch

from benchmarks.harness.train_step.task import LOG_EVERY_STEPS, Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.train_step.hand_loop import autocast, train

GIVEN = "its Llama-style model and loss, compiled by block as it does; a hand-written loop with fused AdamW"


def run(task: Task, turns: Turns) -> None:
    """Train."""
    sys.path.insert(0, str(task.checkout("OLMo-core") / "src"))
    from olmo_core.nn.feed_forward import FeedForwardConfig  # pyright: ignore[reportMissingImports]  # of the checkout
    from olmo_core.nn.transformer import TransformerConfig  # pyright: ignore[reportMissingImports]

    torch.set_float32_matmul_precision("high")
    config = TransformerConfig.llama_like(
        d_model=task.width,
        vocab_size=task.vocab_size,
        n_layers=task.num_layers,
        n_heads=task.num_heads,
        n_kv_heads=task.kv_heads,
        head_dim=task.head_width,
        feed_forward=FeedForwardConfig(hidden_size=task.feed_forward_width, bias=False),
        tie_word_embeddings=task.is_tied,
    )
    model = config.build(init_device=task.device)
    model.init_weights(device=torch.device(task.device), max_seq_len=task.context_tokens)
    turns.say(num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    if task.is_compiled:
        model.apply_compile()

    def loss_of(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return model(inputs, labels=targets, loss_reduction="mean").loss

    train(task, turns, model, loss_of, casting=autocast(task), read_every_steps=LOG_EVERY_STEPS)
