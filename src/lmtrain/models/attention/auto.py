"""The fastest kernel for the device and the tensors.

B batch, T tokens, H heads, Hkv key and value heads, K head width.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import override

from lmtrain.accounting.options.parts import BLOCKED_UP_TO_TOKENS, AttentionFacts
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.models.attention.base import Attention, KernelTarget, Prepared, Seen, Windows, is_cut
from lmtrain.models.attention.blocked import NUM_BLOCKS, blocked
from lmtrain.models.attention.flash import Flash
from lmtrain.models.attention.flex import Flex
from lmtrain.models.attention.sdpa import kernel_picked, sdpa


@final
class Auto(Attention):
    """Compiled on a CPU blocks of rows up to 1,024 tokens, else torch's own choice; elsewhere see `fitted`."""

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        kernel = blocked if q.device.type == "cpu" and q.shape[-2] <= BLOCKED_UP_TO_TOKENS else sdpa
        return kernel(q, k, v, window_tokens=window_tokens, documents=documents)

    @override
    def fitted(self, place: KernelTarget) -> Attention:
        """On GPUs give windows and documents to a kernel that skips the hidden tokens, the reason too if not flash."""
        if place.device_type == "cpu" and not place.is_compiled:
            return Uncompiled()
        if place.device_type != "cuda":
            return self
        try:
            return ByCase(cut=Flash().fitted(place))
        except (ConfigurationError, EnvironmentProblem) as problem:
            notice = str(problem)
        try:
            return ByCase(cut=Flex().fitted(place), notice=notice)
        except ConfigurationError as problem:
            return ByCase(cut=sdpa, notice=f"{notice} {problem}")

    @override
    def describe(self, place: KernelTarget) -> str:
        beyond = f"sdpa ({kernel_picked(place)})"
        if place.device_type != "cpu":
            return f"auto: {beyond}"
        return f"auto: blocked up to {BLOCKED_UP_TO_TOKENS} tokens, {beyond} beyond, on cpu"


@final
class Uncompiled(Attention):
    """On a CPU torch's own kernel, one operation; blocks of rows where a window is at most as wide as a block.

    Forward and backward in blocks take 1.2 to 1.8 of sdpa's CPU time eagerly, and 0.4 to 0.8 where windows are narrow.
    """

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        is_narrow = window_tokens is not None and window_tokens * NUM_BLOCKS <= q.shape[-2]
        kernel = blocked if is_narrow else sdpa
        return kernel(q, k, v, window_tokens=window_tokens, documents=documents)

    @override
    def describe(self, place: KernelTarget) -> str:
        wide = f"sdpa ({kernel_picked(place)})"
        return f"auto: {wide}, windows up to 1/{NUM_BLOCKS} of the context in blocked, on {place.device_type}"


@final
@dataclass(frozen=True, kw_only=True)
class ByCase(Attention):
    """torch's own choice where a token sees all before it, another kernel where windows or documents cut that."""

    cut: Attention
    notice: str = ""

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        prepared = documents.parts[window_tokens] if isinstance(documents, Prepared) else documents
        if prepared is None and not is_cut(q.shape[-2], window_tokens):
            return sdpa(q, k, v)
        return self.cut(q, k, v, window_tokens=window_tokens, documents=documents)

    @override
    def prepare(
        self, documents: Int[Tensor, "B T"] | None, *, num_tokens: int, windows: Windows, device: torch.device
    ) -> Prepared | None:
        """Prepare the layers with a cut; the others have None."""
        cut = [window for window in windows if documents is not None or is_cut(num_tokens, window)]
        if not cut:
            return None
        prepared = self.cut.prepare(documents, num_tokens=num_tokens, windows=cut, device=device)
        return prepared and Prepared(dict.fromkeys(windows) | prepared.parts)

    @override
    def describe(self, place: KernelTarget) -> str:
        because = f" ({self.notice})" if self.notice else ""
        cut = self.cut.describe(place)
        return f"auto: sdpa ({kernel_picked(place)}); windows and documents in {cut}{because}"


def auto_facts(*, on_gpu: bool, is_compiled: bool) -> AttentionFacts:
    """Keep the same as torch's own kernel on a GPU, and uncompiled on a CPU mostly."""
    if on_gpu:
        return AttentionFacts(measured_as="lmtrain.models.attention.sdpa.SDPA", chooses=True, masks_beyond=None)
    if is_compiled:
        return AttentionFacts(chooses=True, masks_beyond=BLOCKED_UP_TO_TOKENS)
    return AttentionFacts(measured_as="lmtrain.models.attention.auto.Uncompiled", chooses=True)


auto = Auto()
