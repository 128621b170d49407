"""What of a run depends on its device: the attention kernel, the loss and the precision."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from lmtrain.errors import EnvironmentProblem
from lmtrain.losses.base import TokenLoss
from lmtrain.models.attention.base import Attention, KernelTarget
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.compilation import blocks, chosen_parts, is_shallow, missing_compiler, none, whole_model
from lmtrain.precision.policy import Precision
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.optimizer import require_float8_head, require_rounding
from lmtrain.training.context import RunContext


def fit_attention(config: RunConfig, *, compute_dtype: torch.dtype) -> tuple[Attention | None, str]:
    """Choose the kernel for the device, the dtype and the widest head of the model, with a line on it.

    None, and no line, for a model that takes none.
    """
    option = config.model.node("attention")
    if option is None:
        return None, ""
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
    return kernel, kernel.describe(place)


def is_compiled(config: RunConfig) -> bool:
    """Return whether the run will be compiled on this machine."""
    found = config.compilation
    return found.compiles and (not found.falls_back or missing_compiler() is None)


def resolved(
    config: RunConfig, model: LanguageModel, *, attention: str, precision: Precision, strategy: str
) -> dict[str, str]:
    """Return the choices of a run by their groups, as options are named, for a record of what ran."""
    compiled = config.compile.target.rpartition(".")[2]
    if config.compilation.falls_back:
        kind = whole_model if is_shallow(model) else blocks
        compiled = (kind if is_compiled(config) else none).__name__
    return {
        "attention": attention.removeprefix("auto: "),
        "precision": precision.facts.name,
        "strategy": strategy,
        "recompute": config.recompute.target.rpartition(".")[2],
        "compile": compiled,
        **dict.fromkeys(("trainer.accelerator", "cluster.accelerator"), device_type(config.trainer.accelerator)),
    }


def compilation_line(config: RunConfig, model: LanguageModel) -> str | None:
    """Say what a choice by the model's depth compiles; a lacking compiler has its own warning."""
    if not (config.compilation.falls_back and is_compiled(config)):
        return None
    return f"compile={config.compile.word}: {chosen_parts(model)}; compile=none begins at once, for a short run"


def fit_loss(config: RunConfig, model: LanguageModel) -> TokenLoss:
    """Build the loss and check its support on the device."""
    loss: TokenLoss = config.loss.build()
    loss.require_fit(device_type=device_type(config.trainer.accelerator), soft_cap=model.output_head().soft_cap)
    return loss


def device_type(accelerator: str) -> str:
    """Return torch's word for the Trainer's devices; refuse a GPU that is missing, or that torch cannot use."""
    found = None if accelerator == "cpu" else torch.accelerator.current_accelerator(check_available=True)
    if found is None and accelerator != "cpu":
        require_no_unused_gpu(os.environ)
    if found is None and accelerator not in ("auto", "cpu"):
        raise EnvironmentProblem(
            f"trainer.accelerator={accelerator}: this machine has no GPU. Did you mean trainer.accelerator=auto?"
        )
    return "cpu" if found is None else found.type


DEVICES: Final = Path("/dev")
HIDES: Final = "CUDA_VISIBLE_DEVICES"


def require_no_unused_gpu(environment: Mapping[str, str], *, devices: Path = DEVICES) -> None:
    """Refuse a machine with an NVIDIA GPU where torch finds none, unless its owner hides it."""
    found = sorted(devices.glob("nvidia[0-9]*"))
    if found and environment.get(HIDES, "0").strip() not in ("", "-1"):
        cuda = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise EnvironmentProblem(
            f"{found[0]} is an NVIDIA GPU that torch, {cuda}, cannot use; `lmtrain doctor` says more. To train on the "
            "CPU all the same: trainer.accelerator=cpu."
        )


def build_precision(config: RunConfig) -> Precision:
    """Settle the precision for the device of the run."""
    require_float8_head(config)
    require_rounding(config)
    return config.precision.build(facts={"device_type": device_type(config.trainer.accelerator)})


def tell_of_precision(precision: Precision, model: LanguageModel, context: RunContext, *, strategy_casts: bool) -> None:
    """Log once the formats, their reason, utilization's divisor, and the effect on this model's layers.

    Raises:
        ConfigurationError: The precision does not suit the model.
    """
    plan = context.plan
    peak = f"peak {plan.peak_flops / 1e12:.4g} TFLOP/s a device" if plan.peak_flops else "peak not known"
    formats = f"precision={precision.describe(strategy_casts=strategy_casts)}; {peak} ({plan.peak_source})"
    lines = [formats, *precision.explain(model)]
    context.events.mark("precision", choice=precision.facts.name, reason=precision.reason, lines="; ".join(lines))
    if context.is_main_process:
        print("\n".join(lines), flush=True)
