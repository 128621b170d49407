"""A run small enough to train in a moment, with the real module, data module, Trainer, log and checkpoints."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.budgets import Budget, horizon
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.data.manifest import Manifest, Shard, SplitManifest
from lmtrain.data.shards import open_dataset
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel, shape_of
from lmtrain.models.documents import Documents
from lmtrain.models.head import OutputHead
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tracking.events import EventLog
from lmtrain.tracking.run_log import RunLog, read_points
from lmtrain.training.context import RunContext
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.module import CausalLMModule
from lmtrain.training.trainer import make_trainer

CONTEXT_TOKENS = 8
SEQUENCES_PER_STEP = 4


class TinyModel(LanguageModel):
    """Scores the next token from the last one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.vocab_size, self.max_context_tokens = 257, 64
        self.embedding = nn.Embedding(257, 4)
        self.head = nn.Linear(4, 257, bias=False)

    @property
    def blocks(self) -> nn.ModuleList:
        return nn.ModuleList()

    def features(self, tokens: Tensor, documents: Documents | None = None) -> tuple[Tensor, None]:
        return self.embedding(tokens), None

    def output_head(self) -> OutputHead:
        return OutputHead(self.head.weight)

    def initialize_weights(self, generator: torch.Generator) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)

    def shape(self) -> Any:
        return shape_of(self, num_tied_head_parameters=0, attention=())


@dataclass(frozen=True, kw_only=True)
class TinyRun:
    """The context of a run over a small data set, and how to train it."""

    context: RunContext

    def module(self, model: LanguageModel | None = None, **settings: Any) -> CausalLMModule:
        """Make the module; settings add to it, or replace what it has."""
        torch.manual_seed(0)
        plain: dict[str, Any] = {
            "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
            "schedule": lambda step, total_steps: 1.0 - step / (2 * total_steps),
        }
        return CausalLMModule(
            model or TinyModel(),
            loss=CrossEntropy(),
            **plain | settings,
            batch=self.context.plan.batch,
            total_steps=self.context.plan.horizon.steps,
            seed=1,
        )

    def fit(
        self,
        *callbacks: pl.Callback,
        module: CausalLMModule | None = None,
        checkpoint: Path | None = None,
        **trainer_settings: Any,
    ) -> pl.Trainer:
        """Train until a callback says stop, from a checkpoint where there is one."""
        settings = {"strategy": "auto", "precision": "32-true", "accelerator": "cpu", **trainer_settings}
        trainer = make_trainer(
            **settings,
            accumulation_micro_steps=self.context.plan.batch.accumulation_micro_steps,
            folder=self.context.folder,
            callbacks=callbacks,
        )
        datamodule = TokenDataModule(folder=self.context.dataset.folder, batch=self.context.plan.batch, seed=1)
        trainer.fit(module or self.module(), datamodule=datamodule, ckpt_path=checkpoint)
        return trainer

    def points(self, metric: str) -> dict[int, float]:
        """Return what the run's log on disk holds of a metric, by step."""
        points = read_points(self.context.folder / "metrics.jsonl")
        return {point.step: point.metrics[metric] for point in points if metric in point.metrics}

    def saved_steps(self) -> list[int]:
        """Return the steps of the checkpoints on disk."""
        folders = self.context.checkpoints_folder.glob("step_*")
        return sorted(int(folder.name.removeprefix("step_")) for folder in folders)


class NotANumber(pl.Callback):
    """Breaks the gradient of one optimizer step, counted from 1, or its loss."""

    def __init__(self, step: int, *, gradient: float = math.nan) -> None:
        self.step, self.gradient = step, gradient

    @property
    def state_key(self) -> str:
        return f"not_a_number_{self.step}"

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step + 1 == self.step:
            gradient = next(pl_module.parameters()).grad
            assert gradient is not None
            gradient.fill_(self.gradient)


class AtStep(pl.Callback):
    """Does something at the end of one optimizer step, counted from 1, as the callback it is."""

    def __init__(self, step: int, action: Callable[[pl.Trainer], object]) -> None:
        self.step, self.action = step, action

    @property
    def state_key(self) -> str:
        return f"at_step_{self.step}"

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            self.action(trainer)


def make_context(
    folder: Path,
    dataset_folder: Path,
    *,
    steps: int = 4,
    num_ranks: int = 1,
    rank: int = 0,
    accumulation_micro_steps: int = 1,
    **plan: Any,
) -> RunContext:
    """Make the context of a run of so many steps; further keywords replace fields of its plan."""
    tokens_per_step = SEQUENCES_PER_STEP * CONTEXT_TOKENS
    batch = Batch(
        context_tokens=CONTEXT_TOKENS,
        tokens_per_step=tokens_per_step,
        micro_batch_sequences=SEQUENCES_PER_STEP // accumulation_micro_steps // num_ranks,
    )
    shape = TinyModel().shape()
    flops = flops_per_token(shape, context_tokens=CONTEXT_TOKENS)
    budget = horizon(
        Budget(steps=steps),
        tokens_per_step=tokens_per_step,
        num_active_parameters=shape.num_active_parameters,
        flops_per_token=flops.palm,
    )
    events = EventLog(folder, rank=rank)
    events.compiles_first = bool(plan.get("is_compiled"))
    whole = Plan(shape=shape, batch=plan_batches(batch, num_ranks=num_ranks), horizon=budget, flops_per_token=flops)
    return RunContext(
        folder=folder,
        plan=replace(whole, **plan),
        dataset=open_dataset(dataset_folder),
        tokenizer=ByteLevelTokenizer(),
        identity={"seed": 1},
        events=events,
        log=RunLog(folder) if rank == 0 else None,
        rank=rank,
    )


def write_dataset(folder: Path, *, validation_mask: np.ndarray | None = None) -> None:
    """Write a byte-level data set of 2,000 training and 201 validation tokens of an easy text; the mask is of loss."""
    folder.mkdir(exist_ok=True)
    text = np.frombuffer(b"the cat sat on the mat and the dog sat on the cat; " * 40, dtype=np.uint8)
    splits = {
        "train": _write_split(folder, "train", text[:2000]),
        "validation": _write_split(folder, "validation", text[:201], mask=validation_mask),
    }
    tokenizer = ByteLevelTokenizer()
    tokenizer.save(folder / "tokenizer")
    manifest = Manifest(
        name="cats", dtype="uint16", vocab_size=257, tokenizer_fingerprint=tokenizer.fingerprint, splits=splits
    )
    (folder / "dataset.json").write_text(json.dumps(manifest.to_json()))


def _write_split(folder: Path, name: str, text: np.ndarray, *, mask: np.ndarray | None = None) -> SplitManifest:
    shard, index = folder / f"{name}_00000.ds", folder / f"{name}_00000.ds.index"
    shard.write_bytes(text.astype("<u2").tobytes())
    index.write_bytes(np.array([len(text)], dtype="<u8").tobytes())
    sha256 = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (shard, index)]
    shards = (Shard(shard.name, len(text), 1, *sha256),)
    if mask is not None:
        (folder / f"{shard.name}.mask").write_bytes(mask.tobytes())
        shards = (replace(shards[0], mask_sha256=hashlib.sha256(mask.tobytes()).hexdigest()),)
    return SplitManifest(num_documents=1, num_tokens=len(text), text_bytes=len(text), shards=shards)
