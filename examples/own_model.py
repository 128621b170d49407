"""A model of your own: plan it without allocating it, then train it with two optimizers in lmtrain's Trainer."""

from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

import lmtrain
from lmtrain.data.synthetic import synthetic
from lmtrain.training.trainer import make_trainer

model = nn.Sequential(nn.Embedding(512, 48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 512))  # [B, T] -> [B, T, V]


class Task(pl.LightningModule):
    """Manual optimisation: SGD for the embedding, AdamW for the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.automatic_optimization = model, False

    def training_step(self, batch: Tensor) -> None:  # noqa: D102
        loss = nn.functional.cross_entropy(self.model(batch[:, :-1].long()).mT, batch[:, 1:].long())
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()
        self.log("train/loss", loss)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:  # noqa: D102
        return [torch.optim.SGD(model[0].parameters(), 1.0), torch.optim.AdamW(model[1:].parameters(), 0.01)]


print(lmtrain.plan(model=model, batch=(8, 64), tokens=100_000)["horizon"])
data = lmtrain.data.TokenDataModule(synthetic(vocab_size=512, num_tokens=60_000), context_tokens=64)
budget = lmtrain.callbacks.TokenBudget(steps=40)
trainer = make_trainer(strategy="auto", precision="32-true", folder=Path(), callbacks=[budget])
trainer.fit(Task(), datamodule=data)
print(f"loss after {trainer.global_step} optimizer steps: {trainer.callback_metrics['train/loss']:.3f}")
