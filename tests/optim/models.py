"""A model small enough to step in a millisecond that has every kind of parameter an optimizer meets."""

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    """Two square matrices of one shape, a tall and a wide one, a table of its own, gains and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.left = nn.Linear(8, 8, bias=False)
        self.right = nn.Linear(8, 8)
        self.up = nn.Linear(8, 24, bias=False)
        self.down = nn.Linear(24, 8, bias=False)
        self.values = nn.Embedding(16, 8)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        h = self.norm(x)
        x = x + self.left(h).tanh() * self.right(h) + self.values(tokens)
        return x + self.down(self.up(x).relu())


class TinyModel(nn.Module):
    """Two layers between an embedding and a head, which may be the same tensor."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 16, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.blocks:
            x = layer(x, tokens)
        return self.head(self.norm(x))


def tiny_model(*, tied: bool = False, seed: int = 0) -> TinyModel:
    torch.manual_seed(seed)
    return TinyModel(tied=tied)


def fill_gradients(model: nn.Module, step: int) -> None:
    """Give every parameter the gradient of a loss on tokens that depend on the step alone."""
    tokens = torch.randint(16, (4, 9), generator=torch.Generator().manual_seed(step))
    model.zero_grad()
    logits = model(tokens[:, :-1])
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
