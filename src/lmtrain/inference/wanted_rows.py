"""A module that treats every token by itself, for the tokens whose result is asked for and no others.

N tokens of several texts one after the other, D width, W wanted tokens.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


@contextmanager
def only_rows(module: nn.Module | None, rows: Sequence[int], *, num_rows: int) -> Generator[None]:
    """Let a module transform these rows of [1, N, D] alone meanwhile, and return zeros for the others.

    Of a prompt only the last token is predicted from, so the last layer's feed-forward is spared all others. No rows:
    one, as modules need not know of no tokens.
    """
    if module is None or len(rows) == num_rows:
        yield
        return
    wanted = torch.tensor(rows or [0])

    def take(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x.index_select(1, wanted.to(x.device)) for x in given)

    def put_back(_: nn.Module, __: tuple[Tensor, ...], result: Any) -> Any:
        if isinstance(result, tuple):  # a mixture's penalty beside it
            return spread(result[0]), *result[1:]
        return spread(result)

    def spread(x: Float[Tensor, "1 W D"]) -> Float[Tensor, "1 N D"]:
        return x.new_zeros(1, num_rows, x.shape[2]).index_copy_(1, wanted.to(x.device), x)

    handles = (module.register_forward_pre_hook(take), module.register_forward_hook(put_back))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
