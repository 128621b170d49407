"""The FlashAttention packages (arXiv 2205.14135, 2307.08691, 2407.08608) for NVIDIA GPUs: versions 2 and 3.

Documents lie end to end and are separated by their borders, so nothing hidden is computed.
B batch, T tokens, H heads, Hkv key and value heads, K head width.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import override

from lmtrain.accounting.options.parts import AttentionFacts
from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.missing_package import install_command
from lmtrain.models.attention.base import Attention, KernelTarget, Prepared, Seen, Windows, document_borders, is_cut

MODULES = {2: "flash_attn", 3: "flash_attn_interface"}
NEWEST_FIRST = {8: (2,), 9: (3, 2), 10: (2,), 12: (2,)}  # by major compute capability: Ampere to Blackwell


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
    """Load a version, or with None the best installed one for this GPU."""
    major, minor = torch.cuda.get_device_capability()
    fit = NEWEST_FIRST.get(major, ())
    if not fit or version not in (None, *fit):
        wanted = "attention=flash" if version is None else f"attention.version={version}"
        runs = " or ".join(map(str, fit)) or "none"
        raise EnvironmentProblem(
            f"{wanted} does not run on compute capability {major}.{minor} (it runs {runs}); use attention=auto."
        )
    candidates = fit if version is None else (version,)
    for candidate in candidates:
        if importlib.util.find_spec(MODULES[candidate]) is not None:
            return _packaged(candidate)
    wanted = " or ".join(MODULES[candidate] for candidate in candidates)
    command = f"{install_command('flash')} --no-build-isolation"
    raise EnvironmentProblem(f"attention=flash needs the package {wanted}: {command}, or use attention=auto.")


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


def _sides(window: int | None) -> tuple[int, int]:
    """Return how many tokens are seen to the left and to the right of a token besides itself; -1 is all."""
    return (-1, -1) if window is None else (window - 1, 0)


def _order() -> dict[str, bool]:
    """Ask for a backward pass without atomics where the run is deterministic; it is slower."""
    return {"deterministic": True} if torch.are_deterministic_algorithms_enabled() else {}


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


DTYPES = (torch.bfloat16, torch.float16)
MAX_HEAD_WIDTH = 256


@final
@dataclass(frozen=True, kw_only=True)
class Flash(Attention):
    """Take the newest installed version for the GPU, or the requested one.

    `max_documents_per_row` is room for borders, on average over a batch's rows: shapes must not depend on the data.
    """

    version: Literal[2, 3] | None = None
    max_documents_per_row: int = 128

    def __post_init__(self) -> None:
        require_count("attention.max_documents_per_row", self.max_documents_per_row)

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        kernel = self.fitted(KernelTarget(device_type=q.device.type, dtype=q.dtype, head_width=q.shape[-1]))
        return kernel(q, k, v, window_tokens=window_tokens, documents=documents)

    @override
    def fitted(self, place: KernelTarget) -> "LoadedFlash":
        if place.device_type != "cuda":
            raise ConfigurationError(
                f"attention=flash needs an NVIDIA GPU, and this is {place.device_type}. Did you mean "
                f"{flash_facts(on_gpu=False).without_gpu}?"
            )
        if place.dtype not in DTYPES or place.head_width > MAX_HEAD_WIDTH or place.head_width % 8:
            raise ConfigurationError(
                f"attention=flash takes bf16 or fp16 and heads up to {MAX_HEAD_WIDTH} wide in multiples of 8, got "
                f"{str(place.dtype).removeprefix('torch.')} and {place.head_width}; use attention=sdpa."
            )
        return LoadedFlash(load_package(self.version), max_documents_per_row=self.max_documents_per_row)

    @override
    def describe(self, place: KernelTarget) -> str:
        return self.fitted(place).describe(place)


@final
@dataclass(frozen=True)
class LoadedFlash(Attention):
    """A package present, for a device able to run it."""

    package: FlashPackage
    max_documents_per_row: int = 128

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        num_tokens = q.shape[-2]
        if isinstance(documents, Tensor):
            documents = self.prepare(documents, num_tokens=num_tokens, windows=(window_tokens,), device=q.device)
        window = window_tokens if is_cut(num_tokens, window_tokens) else None
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [B, T, H, K]
        if documents is None:
            return self.package.dense(q, k, v, window).transpose(1, 2)
        lines = Lines(*(x.flatten(0, 1) for x in (q, k, v)), borders=documents.parts[window_tokens])
        mixed = self.package.ragged(lines, num_tokens, window)  # [B * T, H, K]
        return mixed.unflatten(0, q.shape[:2]).transpose(1, 2)

    @override
    def prepare(
        self, documents: Int[Tensor, "B T"] | None, *, num_tokens: int, windows: Windows, device: torch.device
    ) -> Prepared | None:
        """Find the borders of documents; a window alone needs nothing."""
        del device
        if documents is None:
            return None
        borders = document_borders(documents, max_documents=min(self.max_documents_per_row, num_tokens))
        return Prepared(dict.fromkeys(windows, borders))

    @override
    def describe(self, place: KernelTarget) -> str:
        return f"flash: {self.package.name} on {place.device_type}"


def flash_facts(*, on_gpu: bool) -> AttentionFacts:
    """Keep the same as torch's own kernel on a GPU."""
    measured_as = "lmtrain.models.attention.sdpa.SDPA" if on_gpu else None
    return AttentionFacts(measured_as=measured_as, masks_beyond=None, without_gpu="attention=auto")
