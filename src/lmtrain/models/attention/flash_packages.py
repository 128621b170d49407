"""Finding an installed FlashAttention, and calling each version alike.

Versions differ in module, in how an open window is written, and in whether the log-sum-exp comes along.
B batch, T tokens, L tokens of all rows, H heads, Hkv key and value heads, K head width, N borders.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import install_command

MODULES = {2: "flash_attn", 3: "flash_attn_interface", 4: "flash_attn.cute"}
NEWEST_FIRST = {8: (2,), 9: (3, 4, 2), 10: (4, 2), 12: (2,)}  # by major compute capability: Ampere to Blackwell


@final
class Lines(NamedTuple):
    """Rows end to end, q [L, H, K], k and v [L, Hkv, K], and where documents begin and the last ends, int32 [N + 1]."""

    q: Tensor
    k: Tensor
    v: Tensor
    borders: Tensor


Dense = Callable[[Tensor, Tensor, Tensor, int | None], Tensor]
Ragged = Callable[[Lines, int, int | None], Tensor]


@final
@dataclass(frozen=True)
class FlashPackage:
    """A version's two kernels.

    `dense(q, k, v, window)` takes and gives [B, T, H, K], `ragged(lines, max_tokens, window)` gives [L, H, K] for
    documents of up to max_tokens; a window of None is open.
    """

    name: str
    dense: Dense
    ragged: Ragged


def load_package(version: int | None) -> FlashPackage:
    """Load a version, or with None the best installed one for this GPU.

    Raises:
        EnvironmentProblem: The GPU does not run the version, or it is not installed.
    """
    major, minor = torch.cuda.get_device_capability()
    fit = NEWEST_FIRST.get(major, ())
    if not fit or version not in (None, *fit):
        wanted = "attention=flash" if version is None else f"attention.version={version}"
        runs = " or ".join(map(str, fit)) or "none"
        msg = f"{wanted} does not run on compute capability {major}.{minor} (it runs {runs}); use attention=auto."
        raise EnvironmentProblem(msg)
    for candidate in fit if version is None else (version,):
        try:
            if is_installed(MODULES[candidate]):
                return _hooked() if candidate == 4 else _packaged(candidate)
        except ImportError as broken:
            msg = (
                f"attention=flash: {MODULES[candidate]} is installed and cannot be imported ({broken});"
                " install it anew for this torch, or use attention=sdpa."
            )
            raise EnvironmentProblem(msg) from broken
    wanted = " or ".join(MODULES[candidate] for candidate in (fit if version is None else (version,)))
    command = f"{install_command('flash')} --no-build-isolation"
    msg = f"attention=flash needs the package {wanted}: {command}, or use attention=auto."
    raise EnvironmentProblem(msg)


def is_installed(module: str) -> bool:
    """Tell whether a module has a file of its own: version 4 alone makes `flash_attn` a folder without one."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # not even the package around it
        return False
    return spec is not None and spec.origin is not None


def _packaged(version: int) -> FlashPackage:
    module: Any = importlib.import_module(MODULES[version])

    def dense(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        return _first(module.flash_attn_func(q, k, v, causal=True, window_size=_sides(window), **_order()))

    def ragged(lines: Lines, max_tokens: int, window: int | None) -> Tensor:
        return _first(
            module.flash_attn_varlen_func(
                lines.q,
                lines.k,
                lines.v,
                cu_seqlens_q=lines.borders,
                cu_seqlens_k=lines.borders,
                max_seqlen_q=max_tokens,
                max_seqlen_k=max_tokens,
                causal=True,
                window_size=_sides(window),
                **_order(),
            )
        )

    name = f"flash-attention {getattr(module, '__version__', version)} ({MODULES[version]})"
    return FlashPackage(name, dense, ragged)


def _hooked() -> FlashPackage:
    """Put version 4 in the place of torch's own flash kernels; torch's signatures are those of torch 2.11 to 2.13."""
    from torch.nn.attention import varlen

    if "FA4" not in getattr(torch_attention, "list_flash_attention_impls", list[str])():
        msg = f"attention.version=4 needs a torch with its hook, and {torch.__version__} has none; use attention=auto."
        raise EnvironmentProblem(msg)
    activate: Any = torch_attention.activate_flash_attention_impl
    activate("FA4")
    attend: Any = varlen.varlen_attn
    takes_groups = "enable_gqa" in inspect.signature(attend).parameters

    def ragged(lines: Lines, max_tokens: int, window: int | None) -> Tensor:
        q, k, v, borders = lines
        options = {"enable_gqa": q.shape[1] != k.shape[1]} if takes_groups else {}
        sides = (-1 if window is None else window - 1, 0)
        return attend(q, k, v, borders, borders, max_tokens, max_tokens, window_size=sides, **options)

    def dense(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        if window is None:
            heads = [x.transpose(1, 2) for x in (q, k, v)]  # [B, H, T, K]
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return _causal(*heads).transpose(1, 2)
        num_batch, num_tokens = q.shape[:2]
        borders = torch.arange(num_batch + 1, dtype=torch.int32, device=q.device) * num_tokens
        lines = Lines(*(x.flatten(0, 1) for x in (q, k, v)), borders=borders)
        return ragged(lines, num_tokens, window).unflatten(0, (num_batch, num_tokens))

    return FlashPackage("flash-attention 4 in torch's hook", dense, ragged)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def _sides(window: int | None) -> tuple[int, int]:
    """Return how many tokens are seen to the left and to the right of a token besides itself; -1 is all."""
    return (-1, -1) if window is None else (window - 1, 0)


def _order() -> dict[str, bool]:
    """Ask for a backward pass without atomics where the run is deterministic; it is slower."""
    return {"deterministic": True} if torch.are_deterministic_algorithms_enabled() else {}


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result
