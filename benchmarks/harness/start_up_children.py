"""What questions/start_up.py starts: one trainer each, which ends itself at the end of its first optimizer step.

 `python benchmarks/harness/start_up_children.py ours|hugging_face|litgpt FOLDER [OVERRIDES...]` prints one line:
seconds of this process's CPU and its children's, by phase. The model is `model=llama_tiny`'s shape; the peers draw
random tokens.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

SHAPE = {"width": 128, "num_layers": 4, "num_heads": 2, "feed_forward_width": 512, "vocab_size": 4096}
CONTEXT_TOKENS, NUM_SEQUENCES = 256, 8


class Phases:
    """CPU seconds since the interpreter began, at the end of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.end("interpreter")

    def end(self, name: str) -> None:
        """Say that a phase has ended now; only its first end counts."""
        times = os.times()
        spent = times.user + times.system + times.children_user + times.children_system
        self.seconds.setdefault(name, spent)

    def stop_at_first_step(self) -> None:
        """Print the phases and end this process when any optimizer has made a step."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda *_: self._stop())

    def _stop(self) -> None:
        self.end("first step")
        print("PHASES", json.dumps({"cpu": self.seconds, "at": time.monotonic()}), flush=True)
        os._exit(0)


def after(phases: Phases, module: Any, name: str, *, ends: str) -> None:
    """Wrap a function of ours so that its return ends a phase."""
    wrapped: Callable[..., Any] = getattr(module, name)

    def call(*arguments: Any, **more: Any) -> Any:
        result = wrapped(*arguments, **more)
        phases.end(ends)
        return result

    setattr(module, name, call)


def ours(phases: Phases, overrides: list[str]) -> None:
    """Train as the command line does."""
    from lmtrain.cli.main import serve
    from lmtrain.run import run_config

    phases.end("imports of the command line")
    import_lightning = run_config.import_lightning

    def imported() -> None:
        phases.end("compose")
        import_lightning()
        phases.end("import torch and lightning")

    run_config.import_lightning = imported
    check = run_config.RunConfig.checked

    def checked(*arguments: Any, **more: Any) -> Any:
        result = check(*arguments, **more)
        phases.end("check")
        from lmtrain.run.execution import build, run

        after(phases, run, "build_run", ends="build")
        after(phases, build.CausalLMModule, "configure_model", ends="materialise and wrap")
        phases.stop_at_first_step()
        return result

    run_config.RunConfig.checked = checked
    serve("train", overrides, program="python train.py")


def hugging_face(phases: Phases, overrides: list[str]) -> None:
    """Train with transformers' Trainer; `compile` asks for its torch_compile."""
    import torch

    phases.end("import torch")
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    phases.end("import transformers")

    class Random(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = torch.randint(SHAPE["vocab_size"], (CONTEXT_TOKENS,))
            return {"input_ids": ids, "labels": ids}

    config = LlamaConfig(
        vocab_size=SHAPE["vocab_size"],
        hidden_size=SHAPE["width"],
        intermediate_size=SHAPE["feed_forward_width"],
        num_hidden_layers=SHAPE["num_layers"],
        num_attention_heads=SHAPE["num_heads"],
    )
    arguments = TrainingArguments(
        output_dir=sys.argv[2],
        per_device_train_batch_size=NUM_SEQUENCES,
        max_steps=2,
        report_to=[],
        use_cpu=True,
        torch_compile="compile" in overrides,
    )
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Random())
    phases.end("build")
    phases.stop_at_first_step()
    trainer.train()


def litgpt(phases: Phases, _overrides: list[str]) -> None:
    """Train with `litgpt pretrain`'s own function, which always compiles."""
    import torch

    phases.end("import torch")
    from litgpt.args import EvalArgs, TrainArgs  # pyright: ignore[reportMissingImports]  # of the checkout
    from litgpt.data import DataModule  # pyright: ignore[reportMissingImports]
    from litgpt.model import Config  # pyright: ignore[reportMissingImports]
    from litgpt.pretrain import setup  # pyright: ignore[reportMissingImports]

    phases.end("import litgpt")

    class Random(DataModule):  # pyright: ignore[reportUntypedBaseClass]
        def connect(self, *arguments: Any, **more: Any) -> None: ...

        def train_dataloader(self) -> Any:
            ids = torch.randint(SHAPE["vocab_size"], (64, CONTEXT_TOKENS + 1))
            return torch.utils.data.DataLoader(list(ids), batch_size=NUM_SEQUENCES)

        val_dataloader = train_dataloader

    config = Config(
        name="tiny",
        block_size=CONTEXT_TOKENS,
        vocab_size=SHAPE["vocab_size"],
        padded_vocab_size=SHAPE["vocab_size"],
        n_layer=SHAPE["num_layers"],
        n_head=SHAPE["num_heads"],
        n_embd=SHAPE["width"],
        intermediate_size=SHAPE["feed_forward_width"],
        mlp_class_name="LLaMAMLP",
        norm_class_name="RMSNorm",
        bias=False,
    )
    phases.stop_at_first_step()
    tokens = NUM_SEQUENCES * CONTEXT_TOKENS
    setup(
        "tiny",
        config,
        out_dir=sys.argv[2],
        precision="32-true",
        data=Random(),
        train=TrainArgs(
            global_batch_size=NUM_SEQUENCES,
            micro_batch_size=NUM_SEQUENCES,
            max_tokens=2 * tokens,
            max_seq_length=CONTEXT_TOKENS,
            max_norm=1.0,
            min_lr=1e-5,
            tie_embeddings=False,
        ),
        eval=EvalArgs(interval=1000, max_iters=1, initial_validation=False),
        devices=1,
    )


if __name__ == "__main__":
    CHILDREN = {"ours": ours, "hugging_face": hugging_face, "litgpt": litgpt}
    CHILDREN[sys.argv[1]](Phases(), sys.argv[3:])
