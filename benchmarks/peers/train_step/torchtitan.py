"""torchtitan: its own Trainer on its Llama 3 from a checkout; what a config file of its would say. A CPU has a loop.

Its main branch follows nightly builds of torch: where the installed one is too old, the reason is what its import says.
"""

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness.train_step.task import BETAS, CLIP_NORM, LOG_EVERY_STEPS, LR, WEIGHT_DECAY, Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.train_step import torchtitan_on_cpu
from benchmarks.peers.train_step.hand_loop import crops

GIVEN = (
    "its Llama 3 and its Trainer; FlexAttention over rows, ChunkedLossWrapper, compile.enable for model and loss by "
    "block, CUDA graphs as its default has them, activation_checkpoint none, mixed_precision_param bfloat16 over fp32 "
    "masters, default_adamw (fused), metrics.log_freq 10, crops in place of its tokenizing loader"
)


def run(task: Task, turns: Turns) -> None:
    """Train.

    Raises:
        Unavailable: There is no checkout.
    """
    sys.path.insert(0, str(task.checkout("torchtitan")))
    if task.device == "cpu":
        torchtitan_on_cpu.run(task, turns, config=model_config(task))
        return
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(free_port())
    torch.set_float32_matmul_precision("high")
    trainer = configure(task).build()
    turns.say(num_parameters=sum(parameter.numel() for part in trainer.model_parts for parameter in part.parameters()))
    step = trainer.train_step

    def counted(batches: Any) -> None:
        step(batches)
        turns.step()

    trainer.train_step = counted
    trainer.train()


def configure(task: Task) -> Any:
    """Return its Trainer's config."""
    from torchtitan.components.loss import (  # pyright: ignore[reportMissingImports]  # of the checkout
        ChunkedLossWrapper,
        CrossEntropyLoss,
    )
    from torchtitan.components.metrics import MetricsProcessor  # pyright: ignore[reportMissingImports]
    from torchtitan.components.optimizer import default_adamw  # pyright: ignore[reportMissingImports]
    from torchtitan.config import CompileConfig, TrainingConfig  # pyright: ignore[reportMissingImports]
    from torchtitan.models.llama3 import parallelize_llama  # pyright: ignore[reportMissingImports]
    from torchtitan.protocols.model_spec import ModelSpec  # pyright: ignore[reportMissingImports]
    from torchtitan.trainer import Trainer  # pyright: ignore[reportMissingImports]

    spec = ModelSpec(
        name="llama3",
        flavor="task",
        model=model_config(task),
        parallelize_fn=parallelize_llama,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )
    return Trainer.Config(
        model_spec=spec,
        dump_folder=task.scratch,
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=task.vocab_size)),
        tokenizer=no_tokenizer(),
        dataloader=loader(task),
        optimizer=default_adamw(lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=task.tokens_per_step,
            max_context_length=task.context_tokens,
            max_norm=CLIP_NORM,
            steps=task.max_steps,
            mixed_precision_param="bfloat16" if task.precision == "bf16_mixed" else "float32",
        ),
        activation_checkpoint=None,
        compile=CompileConfig(enable=task.is_compiled),
        metrics=MetricsProcessor.Config(log_freq=LOG_EVERY_STEPS),
    )


def model_config(task: Task) -> Any:
    """Return its Llama 3's config at the task's dimensions, as its registry spells those of its flavors."""
    from torchtitan.models import llama3  # pyright: ignore[reportMissingImports]  # of the checkout
    from torchtitan.models.common import (  # pyright: ignore[reportMissingImports]
        ComplexRoPE,
        Embedding,
        Linear,
        RMSNorm,
    )

    width, vocab_size = task.width, task.vocab_size
    rope = ComplexRoPE.Config(
        dim=task.head_width, max_context_length=task.context_tokens, theta=500_000, scaling="llama"
    )
    table_start = llama3._EMBEDDING_SKIP_INIT if task.is_tied else llama3._EMBEDDING_INIT  # noqa: SLF001
    head_start = llama3._output_linear_init(width)  # noqa: SLF001
    return llama3.Llama3Model.Config(
        dim=width,
        vocab_size=vocab_size,
        enable_weight_tying=task.is_tied,
        tok_embeddings=Embedding.Config(num_embeddings=vocab_size, embedding_dim=width, param_init=table_start),
        norm=RMSNorm.Config(normalized_shape=width, param_init=llama3._NORM_INIT),  # noqa: SLF001
        lm_head=Linear.Config(in_features=width, out_features=vocab_size, param_init=head_start),
        layers=llama3._build_llama3_layers(  # noqa: SLF001
            n_layers=task.num_layers,
            dim=width,
            n_heads=task.num_heads,
            n_kv_heads=task.kv_heads,
            hidden_dim=task.feed_forward_width,
            rope=rope,
            attn_backend="flex",
        ),
    )


def loader(task: Task) -> Any:
    """Return the config of a loader of random crops, rows one after another as its Trainer takes them."""
    from torchtitan.components.data.loader import BaseDataLoader  # pyright: ignore[reportMissingImports]

    class Crops(BaseDataLoader):  # pyright: ignore[reportUntypedBaseClass]
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):  # pyright: ignore[reportUntypedBaseClass]
            pass

        def __init__(self, config: Config, **_: Any) -> None:
            del config

        def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            positions = torch.arange(task.context_tokens).repeat(task.num_sequences)
            for inputs, targets in crops(task, to_device=False):
                yield {"input": inputs.reshape(-1), "positions": positions}, targets.reshape(-1)

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            del state_dict

    return Crops.Config()


def no_tokenizer() -> Any:
    """Return the config of a tokenizer that is never asked."""
    from torchtitan.components.tokenizer import BaseTokenizer  # pyright: ignore[reportMissingImports]

    class Unasked(BaseTokenizer):  # pyright: ignore[reportUntypedBaseClass]
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):  # pyright: ignore[reportUntypedBaseClass]
            pass

        def __init__(self, config: Config, **_: Any) -> None:
            del config
            super().__init__()

        def encode(self, *_: Any, **__: Any) -> list[int]:
            raise NotImplementedError

        def decode(self, *_: Any, **__: Any) -> str:
            raise NotImplementedError

        def get_vocab_size(self) -> int:
            raise NotImplementedError

    return Unasked.Config()


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
