"""Several documents in one row: where each begins, and how far into its own a token is.

`documents` int [B, T] names each token's document and never falls along a row. `EarlierTokens` in its place say
that the documents began before the row did. B batch, T tokens, N tokens of several texts one after the other,
H heads, Hkv key and value heads, K head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

# Parts of each text's tokens [P, T, ...] and its state [P, ...], to an output [P, T, ...] and the next state.
Rule = Callable[[list[Tensor], Tensor], tuple[Tensor, Tensor]]


class EarlierTokens(ABC):
    """A cache's view of the tokens before those of one forward pass, given in the place of documents.

    The tokens are one row of pieces [1, N], each the next ones of a text. `positions` int64 [1, N] counts every token
    from the start of its text; `num_positions` is above the largest. `lengths` are, for each piece, its tokens and how
    many its text has with them.
    """

    positions: Int[Tensor, "1 N"]
    num_positions: int
    lengths: Sequence[tuple[int, int]]

    @abstractmethod
    def previous(self, x: Shaped[Tensor, "1 N *D"]) -> Shaped[Tensor, "1 N *D"]:
        """Return the value of each token's predecessor, zeros for a text's first token, and keep the last ones."""

    @abstractmethod
    def attend(
        self,
        q: Float[Tensor, "1 H N K"],
        k: Float[Tensor, "1 Hkv N K"],
        v: Float[Tensor, "1 Hkv N K"],
        *,
        window_tokens: int | None,
        soft_cap: float | None = None,
        sinks: Float[Tensor, " H"] | None = None,
    ) -> Float[Tensor, "1 H N K"]:
        """Keep keys and values, and mix those visible to each token: [1, H, N, K] -> [1, H, N, K]."""

    @abstractmethod
    def attend_latent(
        self, q: Float[Tensor, "1 H N E"], latent: Float[Tensor, "1 N E"], *, latent_width: int
    ) -> Float[Tensor, "1 H N L"]:
        """Keep one vector a token, the key of all heads, and mix its first L dimensions as their values."""

    @abstractmethod
    def earlier(self, x: Shaped[Tensor, "1 N *D"], num: int) -> list[Shaped[Tensor, "1 N *D"]]:
        """Return the values of the token before, of the one before that, and so on, `num` in all; first zeros."""

    @abstractmethod
    def recur(self, parts: list[Tensor], state_shape: tuple[int, ...], rule: Rule) -> Tensor:
        """Let a rule go on from each text's state by parts [1, N, ...] of its next tokens, and keep the new state."""


Documents = Int[Tensor, "B T"] | EarlierTokens


def num_positions(tokens: Int[Tensor, "B T"], documents: Documents | None) -> int:
    """Return the number of the tokens' positions: a row's, or a cache's count."""
    return documents.num_positions if isinstance(documents, EarlierTokens) else tokens.shape[1]


def starts_document(documents: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Return True where a token is the first of its document: [B, T] -> [B, T]."""
    first = torch.ones_like(documents[:, :1], dtype=torch.bool)
    return torch.cat((first, documents[:, 1:] != documents[:, :-1]), dim=1)


def token_positions(documents: Documents) -> Int[Tensor, "B T"]:
    """Count the tokens before each one in its own document, from 0: [B, T] -> int64 [B, T]."""
    if isinstance(documents, EarlierTokens):
        return documents.positions
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    start = index.masked_fill(~starts_document(documents), 0).cummax(dim=1).values
    return index - start
