"""How the Trainer carries a precision out: autocast around the model, fresh copies of weights, a scaled loss in fp16.

Lightning's own plugin casts every weight in every forward pass, and in fp16 leaves gradients scaled while they are
clipped where the optimizer could skip a step by itself (2.6.6).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import Precision as LightningPrecision
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.precision.cast_weights import KeptCopies
from lmtrain.precision.cpu_products import cpu_matmul_precision
from lmtrain.precision.policy import Precision
from lmtrain.training.spikes import Undo
from lmtrain.training.step_loop import StepHooks


class PrecisionPlugin(LightningPrecision):
    """Carry out a precision; `strategy_casts` says that the strategy casts weights and inputs by itself.

    In fp16 a step with a gradient that is not finite on any rank is skipped on all of them: gradients are summed over
    ranks before they are looked at. The host never asks: an optimizer that takes `found_inf` (torch's fused ones) skips
    on the device, and the step of any other is taken back there.
    """

    def __init__(self, precision: Precision, *, device_type: str, strategy_casts: bool = False) -> None:
        self.precision = precision.facts.name  # pyright: ignore[reportAttributeAccessIssue]  # a Literal of other words there
        exact = cpu_matmul_precision() if device_type == "cpu" else "highest"
        self.matmul_precision = exact if precision.facts.bytes_of.matmul == "fp32" else "high"
        self._device_type = device_type
        self._autocast = precision.compute_dtype if precision.casts and not strategy_casts else None
        self._scaler = torch.amp.GradScaler(device_type) if precision.scales_loss else None
        self._copies = KeptCopies(nn.Identity())
        self.step_hooks: StepHooks | None = None  # given by our loop; Lightning's looks hooks up by itself

    @override
    def connect(
        self, model: nn.Module, optimizers: list[Optimizer], lr_schedulers: list[Any]
    ) -> tuple[nn.Module, list[Optimizer], list[Any]]:
        """Find the model's copies once it is on its device, and let every optimizer step expire them."""
        self._copies = KeptCopies(model)
        for optimizer in optimizers if self._copies else ():
            optimizer.register_step_post_hook(lambda *_: self._copies.expire())
        return super().connect(model, optimizers, lr_schedulers)

    @override
    def forward_context(self) -> AbstractContextManager[Any]:
        """Run the model as it trains, at once; also around evaluation and generation meanwhile."""
        if self._copies:
            self._copies.refresh()
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device_type, dtype=self._autocast, cache_enabled=False)

    @override
    def pre_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensor = tensor if self._scaler is None else self._scaler.scale(tensor)
        if self.step_hooks is None:
            return super().pre_backward(tensor, module)
        self.step_hooks.call("on_before_backward", tensor)
        return tensor

    @override
    def post_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.step_hooks is None:
            return super().post_backward(tensor, module)
        self.step_hooks.call("on_after_backward")
        return tensor.detach()

    @override
    def _after_closure(self, model: pl.LightningModule, optimizer: Optimizer) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.step_hooks is None:
            super()._after_closure(model, optimizer)
            return
        self.step_hooks.call("on_before_optimizer_step", optimizer)
        model.configure_gradient_clipping(optimizer)

    @override
    def optimizer_step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, optimizer: Optimizer, model: pl.LightningModule, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Step, in fp16 with gradients divided by the scale before they are clipped."""
        result = closure()
        if self._scaler is None:
            self._after_closure(model, optimizer)
            optimizer.step(**kwargs)
            return result
        self._scaler.unscale_(optimizer)
        self._after_closure(model, optimizer)
        self._step_unless_infinite(optimizer, self._scaler, **kwargs)
        self._scaler.update()
        return result

    @staticmethod
    def _step_unless_infinite(optimizer: Optimizer, scaler: torch.amp.GradScaler, **kwargs: Any) -> None:
        """Step without a read by the host: torch's scaler decides on calling an optimizer unable to skip by itself."""
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.step(optimizer, **kwargs)
            return
        undo = Undo(optimizer)
        optimizer.step(**kwargs)
        # Nothing public says so (torch 2.13).
        found = scaler._found_inf_per_device(optimizer).values()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        undo.where(torch.stack([infinite.bool() for infinite in found]).any())

    @override
    def state_dict(self) -> dict[str, Any]:
        return {} if self._scaler is None else self._scaler.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._scaler is not None:
            self._scaler.load_state_dict(state_dict)
