"""Several documents in one row: where each begins, and how far into its own a token is.

`documents` int [B, T] names each token's document and never falls along a row. B batch, T tokens.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def starts_document(documents: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Return True where a token is the first of its document: [B, T] -> [B, T]."""
    first = torch.ones_like(documents[:, :1], dtype=torch.bool)
    return torch.cat((first, documents[:, 1:] != documents[:, :-1]), dim=1)


def token_positions(documents: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Count the tokens before each one in its own document, from 0: [B, T] -> int64 [B, T]."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    start = index.masked_fill(~starts_document(documents), 0).cummax(dim=1).values
    return index - start
