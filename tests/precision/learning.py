"""A short course of training, for precisions that should learn alike."""

import argparse
import inspect

import torch
from torch import Tensor

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.precision.cast_weights import KeptCopies
from tests.precision.bf16_products import multiplied_in_fp32


@multiplied_in_fp32()
def learning_curve(model: LanguageModel, *, lr: float, casts: bool = True) -> Tensor:
    """Train 150 steps of 256 bytes of Python source, under autocast where it `casts`: the mean nats of every 25."""
    copies = KeptCopies(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95))
    text = torch.tensor(list(inspect.getsource(argparse).encode()))
    order, losses = torch.Generator().manual_seed(0), list[Tensor]()
    for _ in range(150):
        copies.refresh()
        windows = text[torch.randint(len(text) - 65, (4, 1), generator=order) + torch.arange(65)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=casts, cache_enabled=False):
            total = model(windows[:, :-1], windows[:, 1:].contiguous(), ChunkedCrossEntropy())
        (total.objective / total.num_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.nats / total.num_tokens)
    return torch.stack(losses).view(-1, 25).mean(dim=1)
