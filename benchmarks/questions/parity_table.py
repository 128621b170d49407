"""Logits and gradients beside those of transformers: `python benchmarks/questions/parity_table.py > docs/parity.md`.

Every model with the same random weights in both, in fp32 and with weights rounded to bf16, through each attention
kernel that runs on this machine's CPU.
"""

import platform
import warnings
from collections.abc import Iterator

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.models.attention.base import Attention, KernelTarget
from lmtrain.models.attention.blocked import blocked
from lmtrain.models.attention.eager import eager
from lmtrain.models.attention.flex import Flex
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.base import LanguageModel
from tests.parity.reference import MODELS, fused, model_type_of, ours, parts_of, theirs

KERNELS: dict[str, Attention] = {"eager": eager, "sdpa": sdpa, "blocked": blocked, "flex": Flex()}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NUM_STEPS = 50

HEADER = f"""# Parity with transformers

Written by `python benchmarks/questions/parity_table.py > docs/parity.md` (torch {torch.__version__.split("+")[0]}, \
transformers {transformers.__version__}, {platform.machine()} CPU): nothing here is typed by hand.

Small models with random weights (init 0.1, norms and biases moved off 1 and 0), 2 x 33 tokens, the same weights in
both libraries; transformers computes its attention plainly ("eager"). The logits' spread is their standard deviation;
differences are the largest of all logits, and the largest of any gradient relative to the largest entry of its tensor.
In bf16 both libraries hold weights and activations in bf16, which resolves 1 part in 256: both round, at other places.

| model | dtype | kernel | logits' spread | largest difference of logits | of gradients, relative |
|---|---|---|---|---|---|"""

STEPS_HEADER = f"""
Losses over {NUM_STEPS} steps of `torch.optim.AdamW` (lr 1e-3, weight decay 0.1) on the same batches, fp32, eager:

| model | loss at the first step | at the last | largest difference on the way |
|---|---|---|---|"""


def obstacle(kernel: Attention, dtype: torch.dtype) -> str | None:
    """Say why a kernel does not run on a CPU with gradients, or None."""
    try:
        kernel.fitted(KernelTarget(device_type="cpu", dtype=dtype, head_width=16))
    except (ConfigurationError, EnvironmentProblem) as problem:
        return str(problem)
    return None


def logits_and_gradients(model: nn.Module, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return fp32 logits, and the gradient of the next-token loss by name of parameter."""
    out = model(tokens)
    logits = (out if isinstance(out, Tensor) else out.logits).float()
    F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return logits.detach(), {n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None}


def compare(name: str, dtype: torch.dtype, kernel: Attention) -> tuple[float, float, float]:
    """Return the logits' spread, the largest difference of logits, and the largest relative one of gradients."""
    kind, options = MODELS[name]
    model = ours(kind, options, attention=kernel)
    reference = theirs(model, options).to(dtype)
    tokens = torch.randint(model.vocab_size, (2, 33), generator=torch.Generator().manual_seed(2))
    logits, gradients = logits_and_gradients(rounded(model, dtype), tokens)
    expected, wanted = logits_and_gradients(reference, tokens)
    given = fused(parts_of(model, model_type_of(kind, options), gradients))
    apart = max(((given[n] - wanted[n]).abs().max() / wanted[n].abs().max()).item() for n in given)
    return expected.std().item(), (logits - expected).abs().max().item(), apart


def rounded(model: LanguageModel, dtype: torch.dtype) -> LanguageModel:
    """Hold weights in a dtype; tables of rotations stay fp32, as in transformers."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def losses(model: nn.Module, vocab_size: int) -> list[float]:
    """Train for some steps on batches that depend on the step alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    generator = torch.Generator().manual_seed(3)
    found: list[float] = []
    for _ in range(NUM_STEPS):
        tokens = torch.randint(vocab_size // 2, (4, 25), generator=generator)
        out = model(tokens[:, :-1])
        logits = out if isinstance(out, Tensor) else out.logits
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def rows() -> Iterator[str]:
    """Yield the table's rows, then those of the training runs."""
    for name in MODELS:
        for dtype_name, dtype in DTYPES.items():
            for kernel_name, kernel in KERNELS.items():
                if obstacle(kernel, dtype) is None:
                    spread, logits, gradients = compare(name, dtype, kernel)
                    yield f"| {name} | {dtype_name} | {kernel_name} | {spread:.2f} | {logits:.1e} | {gradients:.1e} |"
    for kernel_name, kernel in KERNELS.items():
        if problem := obstacle(kernel, torch.float32):
            yield f"\nNot run here: {kernel_name}. {problem}"
    yield STEPS_HEADER
    for name, (kind, options) in MODELS.items():
        model = ours(kind, options)
        mine, wanted = losses(model, model.vocab_size), losses(theirs(ours(kind, options), options), model.vocab_size)
        apart = max(abs(a - b) for a, b in zip(mine, wanted, strict=True))
        yield f"| {name} | {mine[0]:.4f} | {mine[-1]:.4f} | {apart:.1e} |"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    print(HEADER)
    for row in rows():
        print(row, flush=True)
