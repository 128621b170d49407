"""A hand-written PyTorch loop with lmtrain's model, optimizer, loss and data: no Trainer and no configuration."""

import numpy as np
import torch

from lmtrain.data.shards import open_dataset
from lmtrain.data.synthetic import synthetic
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.llama import Llama
from lmtrain.optim.muon import muon

CONTEXT, BATCH, STEPS = 64, 8, 20

dataset = open_dataset(synthetic(vocab_size=512, num_tokens=60_000))  # or a folder of `lmtrain prepare`
tokens = dataset.split("train")
model = Llama(width=64, num_layers=2, num_heads=2, feed_forward_width=128, vocab_size=512, max_context_tokens=CONTEXT)
model.initialize_weights(torch.Generator().manual_seed(0))
optimizer = muon(model, lr=0.02, embedding_lr=0.04, head_lr=0.01, vector_lr=0.02)
loss = CrossEntropy()
rng = np.random.default_rng(0)

for step in range(STEPS):
    starts = rng.integers(0, tokens.num_tokens - CONTEXT - 1, size=BATCH)
    rows = torch.from_numpy(tokens.windows(starts, CONTEXT + 1).astype(np.int64))  # [B, T + 1]
    total = model(rows[:, :-1], rows[:, 1:], loss)
    (total.objective / total.num_tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 0 or step == STEPS - 1:
        print(f"step {step}: {total.nats.item() / total.num_tokens.item():.4f} nats per token")
