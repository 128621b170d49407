"""A few steps of a real model under a real Trainer, for the tests of the training module."""

import lightning.pytorch as pl
import torch

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.llama import Llama
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.module import CausalLMModule
from lmtrain.training.trainer import make_trainer

CONTEXT_TOKENS, SEQUENCES_PER_STEP = 16, 4
LR = 0.5


def meta_model():
    with torch.device("meta"):
        return Llama(width=16, num_layers=1, num_heads=2, feed_forward_width=32, vocab_size=257, max_context_tokens=16)


class StopAfter(pl.Callback):
    """Ends the fit after some steps; keeps the batches of the whole run, and saves its last step where asked to."""

    def __init__(self, steps, save_to=None):
        self.steps, self.save_to, self.batches = steps, save_to, []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches.append(batch)
        trainer.should_stop = trainer.global_step >= self.steps

    def on_train_end(self, trainer, pl_module):
        if self.save_to:
            trainer.save_checkpoint(self.save_to)


def train(
    data_folder, folder, *, micro_batch_sequences=4, steps=1, checkpoint=None, save_to=None, extra=None, **settings
):
    """Return a module that was trained for so many steps, and what it read."""
    batch = Batch(
        context_tokens=CONTEXT_TOKENS,
        tokens_per_step=CONTEXT_TOKENS * SEQUENCES_PER_STEP,
        micro_batch_sequences=micro_batch_sequences,
    )
    plan = plan_batches(batch)
    module = CausalLMModule(
        meta_model(),
        schedule=lambda step, total_steps: 1 - step / total_steps,
        **{
            "loss": CrossEntropy(),
            "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=LR),
            "batch": plan,
            "total_steps": 10,
            "seed": 7,
            **settings,
        },
    )
    callback = StopAfter(steps, save_to)
    trainer = make_trainer(
        strategy="auto",
        precision="32-true",
        accelerator="cpu",
        accumulation_micro_steps=plan.accumulation_micro_steps,
        folder=folder,
        callbacks=[callback, *([extra] if extra else [])],
    )
    datamodule = TokenDataModule(folder=data_folder, batch=plan, seed=7)
    trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
    return module, callback.batches


def tiny_module(*, total_steps):
    """Return a module for a stock Trainer."""
    batch = plan_batches(Batch(context_tokens=CONTEXT_TOKENS, tokens_per_step=CONTEXT_TOKENS * SEQUENCES_PER_STEP))
    return CausalLMModule(
        meta_model(),
        loss=CrossEntropy(),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=LR),
        schedule=lambda step, total_steps: 1.0,
        batch=batch,
        total_steps=total_steps,
        seed=7,
    )


def data_module(data_folder):
    """Return the data of `tiny_module` for a stock Trainer."""
    return TokenDataModule(data_folder, context_tokens=CONTEXT_TOKENS, micro_batch_sequences=SEQUENCES_PER_STEP)


def weights(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.language_model.parameters()])
