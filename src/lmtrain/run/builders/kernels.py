"""A run's attention kernel and loss for its device: settled before any allocation."""

import os
from dataclasses import dataclass

import torch

from lmtrain.errors import EnvironmentProblem
from lmtrain.losses.base import TokenLoss
from lmtrain.models.attention.base import Attention, KernelTarget
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.compilation import chosen_parts, missing_compiler
from lmtrain.run.builders.unused_gpu import require_no_unused_gpu
from lmtrain.run.run_config import RunConfig
from lmtrain.tracking.events import EventLog


@dataclass(frozen=True, kw_only=True)
class FittedAttention:
    """The kernel of a run, and a line on it; none where the model takes none."""

    kernel: Attention | None = None
    line: str = ""

    def tell(self, events: EventLog, *, rank: int) -> None:
        """Log once the kernel's name, and why no other runs."""
        if self.kernel is None:
            return
        events.mark("attention", kernel=self.line)
        if rank == 0:
            print(f"attention={self.line}", flush=True)


def fit_attention(config: RunConfig, *, compute_dtype: torch.dtype) -> FittedAttention:
    """Choose the kernel for the device, the dtype and the widest head of the model.

    Raises:
        ConfigurationError: The chosen kernel cannot run there.
        EnvironmentProblem: Its package is missing.
    """
    option = config.model.node("attention")
    if option is None:
        return FittedAttention()
    with torch.device("meta"):
        model: LanguageModel = config.model.build()
    place = KernelTarget(
        device_type=device_type(config.trainer.accelerator),
        dtype=compute_dtype,
        head_width=max((layer.head_width for layer in model.shape().attention), default=0),
        is_compiled=is_compiled(config),
    )
    asked: Attention = option.build()
    kernel = asked.fitted(place)
    return FittedAttention(kernel=kernel, line=kernel.describe(place))


def is_compiled(config: RunConfig) -> bool:
    """Tell whether the run will be compiled on this machine."""
    found = config.compilation
    return found.compiles and (not found.falls_back or missing_compiler() is None)


def compilation_line(config: RunConfig, model: LanguageModel) -> str | None:
    """Say what a choice by the model's depth compiles; a lacking compiler has its own warning."""
    is_chosen = config.compilation.falls_back and is_compiled(config)
    return f"compile={config.compile.word}: {chosen_parts(model)}" if is_chosen else None


def fit_loss(config: RunConfig, model: LanguageModel) -> TokenLoss:
    """Build the loss and check its support on the device.

    Raises:
        ConfigurationError: It cannot.
        EnvironmentProblem: Its package is missing.
    """
    loss: TokenLoss = config.loss.build()
    loss.require_fit(device_type=device_type(config.trainer.accelerator), soft_cap=model.output_head().soft_cap)
    return loss


def device_type(accelerator: str) -> str:
    """Return torch's word for the Trainer's devices.

    Raises:
        EnvironmentProblem: There is no GPU where one is asked for, or one that torch cannot use.
    """
    found = None if accelerator == "cpu" else torch.accelerator.current_accelerator(check_available=True)
    if found is None and accelerator != "cpu":
        require_no_unused_gpu(os.environ)
    if found is None and accelerator not in ("auto", "cpu"):
        raise EnvironmentProblem(
            f"trainer.accelerator={accelerator}: this machine has no GPU; nearest valid: trainer.accelerator=auto."
        )
    return "cpu" if found is None else found.type
