"""lmtrain's data and callbacks in Lightning's own Trainer, with a LightningModule that knows nothing of lmtrain."""

import lightning
import torch
from torch import nn

import lmtrain
from lmtrain.data.synthetic import synthetic

CONTEXT, VOCABULARY = 64, 512


class Bigrams(lightning.LightningModule):
    """Predict each token from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Embedding(VOCABULARY, VOCABULARY)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of ids [B, T + 1]."""
        ids = batch.long()
        loss = nn.functional.cross_entropy(self.logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Train with AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=0.05)


data = lmtrain.data.TokenDataModule(synthetic(vocab_size=VOCABULARY, num_tokens=60_000), context_tokens=CONTEXT)
ours = [lmtrain.callbacks.Throughput(every_steps=10), lmtrain.callbacks.TokenBudget(tokens=50 * 8 * CONTEXT)]
trainer = lightning.Trainer(callbacks=ours, logger=False, enable_progress_bar=False, enable_checkpointing=False)
trainer.fit(Bigrams(), datamodule=data)
for name, value in trainer.callback_metrics.items():
    print(f"{name}: {value:.4g}")
