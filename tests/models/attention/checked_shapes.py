"""Run every kernel with each signature's shapes checked at run time; started as a process of its own.

The hook has to be in place before the kernels are imported, and must not stay for other tests.
"""

from jaxtyping import TypeCheckError, install_import_hook

with install_import_hook("lmtrain.models.attention", "beartype.beartype"):
    import torch

    from lmtrain.models.attention.auto import Auto, ByCase
    from lmtrain.models.attention.blocked import Blocked
    from lmtrain.models.attention.eager import Eager
    from lmtrain.models.attention.flash import FlashPackage, LoadedFlash
    from lmtrain.models.attention.sdpa import SDPA

PACKAGE = FlashPackage("none", lambda q, k, v, window: q, lambda lines, max_tokens, window: lines.q)
# Without Flex: its rule of who sees whom is traced by torch, which cannot trace a checked function.
KERNELS = (Eager(), SDPA(), Blocked(), Auto(), ByCase(cut=Eager()), LoadedFlash(PACKAGE))


def run(kernel) -> None:
    q, k, v = (torch.randn(2, heads, 20, 16) for heads in (4, 2, 2))
    documents = torch.arange(20).div(6, rounding_mode="floor").int().expand(2, 20).contiguous()
    for window_tokens in (None, 4):
        for given in (None, documents):
            prepared = kernel.prepare(given, num_tokens=20, windows=(None, 4), device=q.device)
            for seen in (given, given if prepared is None else prepared):
                kernel(q, k, v, window_tokens=window_tokens, documents=seen)
    try:
        kernel(q, k, v[:, :, :-1])
    except TypeCheckError:
        print(f"{type(kernel).__name__}: shapes hold, and one that does not is noticed")


with torch.no_grad():
    for attention in KERNELS:
        run(attention)
