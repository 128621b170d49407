"""Plan the training of any `nn.Module`: its parameters, FLOPs and memory counted on fake tensors, without a config.

One forward and backward pass runs on tensors that have shapes and no bytes, so a model of any size takes seconds and no
memory. Products are counted by torch's own formulas (`torch.utils.flop_counter`).
"""

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import Horizon
from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.machine.hardware import DEVICES, MatmulDtype, one_device
from lmtrain.accounting.model.flops import FlopsPerToken
from lmtrain.accounting.model.memory import ALLOCATOR_MARGIN, DeviceMemory
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.accounting.training_plan.speed import expected_speed
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.models.transformers_config import LENGTHS
from lmtrain.simulate.counted_operators import ON_CPU
from lmtrain.simulate.live_memory import LiveBytes, tensors_in, without_bytes

ATTENTION: Final = "_attention"  # in an operation's name
DEFAULT_CONTEXT: Final = 1024  # tokens, and the most taken from the model
FAILURES: Final = logging.getLogger("torch._subclasses.fake_tensor")  # of a forward pass, which the notes name
FORMATS: Final[dict[torch.dtype, MatmulDtype]] = {torch.float16: "fp16", torch.float32: "fp32"}
VALUES_KEPT: Final = 2  # in fp32 for a parameter, where an optimizer cannot take a step on fake tensors


@dataclass(frozen=True, kw_only=True)
class CountedStep:
    """One micro-batch: FLOPs of products and of attention's forward pass, and bytes kept and at the peak."""

    product_flops: float
    attention_flops: float
    activations: int
    workspace: int


def plan_module(
    model: Any,
    *,
    batch: int | tuple[int, int] = 1,
    optimizer: Any = torch.optim.AdamW,
    tokens: int | None = None,
    device: str | None = None,
    num_devices: int = 1,
    autocast: torch.dtype | None = None,
    mfu: float | None = None,
    usd_per_gpu_hour: float | None = None,
    inputs: Sequence[Tensor] | None = None,
) -> dict[str, Any]:
    """Return the plan of a training of `model` under the keys of `lmtrain plan --json`.

    `model` is an `nn.Module` of token ids [B, T] that returns logits [B, T, V] (or an object with `.logits`), or a
    configuration of transformers. `batch` is the sequences of a step, or (sequences, tokens of each). `optimizer` is
    a class, an instance, a function from parameters to an optimizer, or a name of `torch.optim` in small letters.
    `tokens` are those of the whole run (None: one step), `device` a product name of the hardware table. `inputs` are
    the arguments of `forward` in place of token ids.

    Raises:
        ConfigurationError: The model has no parameters, or an argument is unknown or out of range.

    Example: `plan_module(nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 100)), batch=(4, 128))`
    """
    module = _built(model)
    sequences, context = _batch_shape(batch if isinstance(batch, tuple) else (batch, _context_tokens(model, module)))
    counts = _shape(module)
    dtype = autocast or next((one.dtype for one in module.parameters()), torch.float32)
    divided = BatchPlan(
        context_tokens=context,
        sequences_per_micro_step=sequences // num_devices or 1,
        accumulation_micro_steps=1,
        num_ranks=num_devices,
    )
    step, state_bytes, notes = _counted(module, divided, optimizer, autocast=autocast, inputs=inputs)
    flops = _flops_per_token(counts, step, divided)
    steps = 1 if tokens is None else -(-tokens // divided.tokens_per_step)
    run_tokens = steps * divided.tokens_per_step
    cluster = Cluster(name="any", device=device, mfu=mfu, usd_per_gpu_hour=usd_per_gpu_hour)
    matmul: MatmulDtype = FORMATS.get(dtype, "bf16")
    peak = cluster.peak(matmul)
    plan = Plan(
        shape=counts,
        batch=divided,
        horizon=Horizon(
            steps=steps,
            tokens=run_tokens,
            flops=run_tokens * flops.palm,
            limited_by="steps" if tokens is None else "tokens",
        ),
        flops_per_token=flops,
        peak_flops=peak.flops if peak else None,
        peak_source=peak.source if peak else "unknown: name a device of the hardware table",
        usd_per_gpu_hour=usd_per_gpu_hour,
        device_bytes=cluster.device_bytes,
        components={name: size for name, one in module.named_children() if (size := _count(one.parameters()))},
        memory=_memory(module, step, state_bytes),
        speed=expected_speed(cluster, peak, divided, flops_per_token=flops.palm),
    )
    return plan.to_json() | {"advice": notes, "ok": plan.fits is not False}


class Fit(NamedTuple):
    """Whether a step fits a device, both in bytes, and the nearest change with which it does; None: none is known."""

    fits: bool
    num_bytes: int
    device_bytes: int
    change: str | None

    def __bool__(self) -> bool:
        """Return whether it fits as it is."""
        return self.fits


def fits(
    model: Any,
    *,
    batch: int | tuple[int, int] = 1,
    optimizer: Any = torch.optim.AdamW,
    device: str,
    autocast: torch.dtype | None = None,
) -> Fit:
    """Plan one step of `model` on one device; the arguments are those of `plan_module`.

    The change is the largest smaller batch that fits, or else the device of the table with the least memory that does;
    each has been planned.

    Raises:
        ConfigurationError: As `plan_module`; `device` is not one device of the hardware table.

    Example: `fits(AutoConfig.from_pretrained(folder), batch=(8, 2048), device="NVIDIA H100 80GB HBM3")`
    """
    chosen = one_device(device)
    module = _built(model)
    sequences, context = _batch_shape(batch if isinstance(batch, tuple) else (batch, _context_tokens(model, module)))

    @cache
    def total(num_sequences: int) -> int:
        planned = plan_module(module, batch=(num_sequences, context), optimizer=optimizer, autocast=autocast)
        return planned["memory"]["per_device_bytes"]["total"]

    held = chosen.memory_bytes
    if total(sequences) <= held:
        return Fit(fits=True, num_bytes=total(sequences), device_bytes=held, change=None)
    change = None
    if sequences > 1 and total(1) <= held:
        each = (total(sequences) - total(1)) / (sequences - 1)
        fewer = min(sequences - 1, 1 + int((held - total(1)) / each))
        while total(fewer) > held:
            fewer -= 1
        change = f"batch=({fewer}, {context})"
    elif larger := [one for one in DEVICES.values() if one.memory_bytes >= total(sequences)]:
        change = f"device={min(larger, key=lambda one: one.memory_bytes).name!r}"
    return Fit(fits=False, num_bytes=total(sequences), device_bytes=held, change=change)


def _built(model: Any) -> nn.Module:
    """Return the module, or the causal model of a configuration, built on meta by the library of that class."""
    if isinstance(model, nn.Module):
        if next(model.parameters(), None) is None:
            raise ConfigurationError(f"model: must have parameters, got {type(model).__name__} without any.")
        return model
    library: Any = sys.modules[type(model).__module__.partition(".")[0]]
    if not hasattr(library, "AutoModelForCausalLM"):
        raise ConfigurationError(f"model: must be an nn.Module or a configuration of transformers, got {model!r}.")
    with torch.device("meta"):
        return library.AutoModelForCausalLM.from_config(model)


def _batch_shape(batch: tuple[Any, ...]) -> tuple[int, int]:
    if len(batch) != 2 or not all(isinstance(one, int) and one > 0 for one in batch):
        raise ConfigurationError(f"batch: must be sequences, or (sequences, tokens of each), above 0; got {batch}.")
    return batch[0], batch[1]


def _context_tokens(model: Any, module: nn.Module) -> int:
    sources = (module, getattr(module, "config", None), model)
    names = ("max_context_tokens", *LENGTHS)
    found = (getattr(source, name, None) for source in sources for name in names)
    return min(next((one for one in found if isinstance(one, int)), DEFAULT_CONTEXT), DEFAULT_CONTEXT)


def _shape(module: nn.Module) -> ModelShape:
    """Count parameters: a table of embeddings multiplies no token, unless the head is tied to it."""
    tables = {id(one.weight) for one in module.modules() if isinstance(one, nn.Embedding)}
    others = (one for one in module.modules() if not isinstance(one, nn.Embedding))
    elsewhere = {id(parameter) for one in others for parameter in one.parameters(recurse=False)}
    parameters = list(module.parameters())
    matrices = [one for one in parameters if one.ndim >= 2 and (id(one) not in tables or id(one) in elsewhere)]
    total = _count(parameters)
    return ModelShape(
        num_parameters=total,
        num_embedding_parameters=_count(one for one in parameters if id(one) in tables),
        num_matmul_parameters=_count(matrices),
        num_active_parameters=total,
        attention=(),
        num_frozen_parameters=_count(one for one in parameters if not one.requires_grad),
        num_frozen_matmul_parameters=_count(one for one in matrices if not one.requires_grad),
    )


def _count(parameters: Iterable[Tensor]) -> int:
    return sum(one.numel() for one in parameters)


def _counted(
    module: nn.Module,
    batch: BatchPlan,
    optimizer: Any,
    *,
    autocast: torch.dtype | None,
    inputs: Sequence[Tensor] | None,
) -> tuple[CountedStep | None, int, list[str]]:
    """Run one micro-batch and one optimizer step on fake tensors; None and a note where the model refuses them."""
    notes: list[str] = []
    step: CountedStep | None = None
    with FakeTensorMode(allow_non_fake_inputs=True), patch.object(FAILURES, "disabled", new=True):
        fake = without_bytes(module)
        for parameter in fake.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        try:
            step = _pass(fake, batch, autocast=autocast, inputs=inputs)
        except Exception as problem:  # noqa: BLE001  a stranger's forward may read values, which fake tensors lack
            reason = str(problem).partition("\n")[0]
            notes.append(f"FLOPs are 6 x parameters, without activations: the forward pass failed: {reason}")
        state = _state_bytes(fake, optimizer, notes)
    return step, state, notes


def _pass(
    fake: nn.Module, batch: BatchPlan, *, autocast: torch.dtype | None, inputs: Sequence[Tensor] | None
) -> CountedStep:
    shape = batch.sequences_per_micro_step, batch.context_tokens
    given = [torch.empty(one.shape, dtype=one.dtype) for one in inputs] if inputs else [torch.zeros(shape).long()]
    gradients = [one.grad for one in fake.parameters() if one.grad is not None]
    casting = torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None)
    with (
        LiveBytes([*fake.parameters(), *fake.buffers(), *given, *gradients]) as live,
        FlopCounterMode(display=False, custom_mapping={**ON_CPU}) as counted,
    ):
        with casting:
            made = fake(*given)
            logits = getattr(made, "logits", made)
            output = logits if isinstance(logits, Tensor) else tensors_in(logits)[0]
            kept = live.now
            loss = _loss(output, given[0])
        del made, logits, output
        loss.backward()
    by_operation = {str(name): flops for name, flops in counted.get_flop_counts()["Global"].items()}
    attention = {name: flops for name, flops in by_operation.items() if ATTENTION in name}
    return CountedStep(
        product_flops=sum(by_operation.values()) - sum(attention.values()),
        attention_flops=sum(flops for name, flops in attention.items() if "backward" not in name),
        activations=kept,
        workspace=max(0, live.peak - kept),
    )


def _loss(output: Tensor, tokens: Tensor) -> Tensor:
    if output.ndim == tokens.ndim + 1 and not tokens.is_floating_point():
        return nn.functional.cross_entropy(output.flatten(0, -2).float(), tokens.flatten())
    return output.float().sum()


def _state_bytes(fake: nn.Module, optimizer: Any, notes: list[str]) -> int:
    """Return the bytes that an optimizer keeps after a step; AdamW's and a note where it cannot take one."""
    make = _maker(optimizer)
    trained = [one for one in fake.parameters() if one.requires_grad]
    if not trained:
        return 0
    try:
        with patch.object(Tensor, "item", lambda _: 1.0):  # fake tensors have no values to read
            built = make(trained)
            built.step()
    except Exception as problem:  # noqa: BLE001  it may read values in other ways, or need more arguments
        reason = str(problem).partition("\n")[0]
        notes.append(f"the optimizer's memory is AdamW's: the optimizer failed to take a step: {reason}")
        return VALUES_KEPT * 4 * _count(trained)
    return sum(one.nbytes for one in tensors_in(list(built.state.values())))


def _maker(optimizer: Any) -> Callable[[list[nn.Parameter]], Any]:
    """Return the function from parameters to an optimizer."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return lambda trained: type(optimizer)(trained, **optimizer.defaults)
    named = {name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    del named["optimizer"]  # their base
    made = named.get(optimizer) if isinstance(optimizer, str) else optimizer
    if not callable(made):
        raise ConfigurationError(
            f"optimizer: must be a class, an instance, a function of the parameters, or one of {', '.join(named)}; "
            f"got {optimizer}.{suggest(str(optimizer), named)}"
        )
    return made


def _flops_per_token(shape: ModelShape, step: CountedStep | None, batch: BatchPlan) -> FlopsPerToken:
    six_n = 6 * shape.num_active_parameters
    if step is None:
        return FlopsPerToken(palm=six_n, causal=six_n, six_n=six_n)
    seen = (batch.context_tokens + 1) / (2 * batch.context_tokens)
    palm, causal = (step.product_flops + 3 * step.attention_flops * share for share in (1, seen))
    num_tokens = batch.micro_batch_tokens
    return FlopsPerToken(palm=round(palm / num_tokens), causal=round(causal / num_tokens), six_n=six_n)


def _memory(module: nn.Module, step: CountedStep | None, state_bytes: int) -> DeviceMemory:
    held = [*module.parameters(), *module.buffers()]
    memory = DeviceMemory(
        weights=sum(one.nbytes for one in held),
        weights_copy=0,
        gradients=sum(one.nbytes for one in held if one.requires_grad),
        optimizer=state_bytes,
        activations=step.activations if step else 0,
        workspace=step.workspace if step else 0,
        moment="the backward pass",
    )
    return replace(memory, margin=round(memory.total * ALLOCATOR_MARGIN))
