"""The names of the rows of each part, by which one asks for some of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from benchmarks.harness.hopper import attention, copies, cures, first_look, losses, optimizers, peers, products, speeds

NAMES: Final[dict[str, Callable[[], Iterable[str]]]] = {
    "kernels": lambda: first_look.CALLS,
    "copies": lambda: copies.PLACES,
    "products": lambda: {layer.name for layer in products.layers(is_toy=True)},
    "attention": lambda: attention.OPTIONS,
    "losses": lambda: losses.LOSSES,
    "optimizer": lambda: optimizers.STEPS,
    "speed": lambda: (variant.name for variant in speeds.VARIANTS),
    "cures": lambda: cures.WITHOUT,
    "peers": lambda: (*peers.LOOPS, peers.NANOCHAT_LOOP),
    "memory": lambda: ("bf16", "whole_step"),
    "start": lambda: ("cold", "warm"),
    "curve": lambda: ("plain fp32", "fast bf16", "fast fp8"),
    "profile": lambda: ("before", "after"),
}


def require_known(variants: Sequence[str], *, parts: Sequence[str]) -> None:
    """Check that every variant is a row of some of the parts.

    Raises:
        ValueError: One is not; the message has those that are.
    """
    if not variants:
        return
    known = sorted({name for part in parts if part in NAMES for name in NAMES[part]()})
    for variant in variants:
        if variant not in known:
            raise ValueError(f"--variants {variant}: no row of {', '.join(parts)} is called so; there are: {known}")
