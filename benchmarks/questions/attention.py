"""CPU or GPU time and largest difference of every attention kernel that runs on this machine, against eager.

    python benchmarks/questions/attention.py                            # this machine's device, about a minute on a CPU
    python benchmarks/questions/attention.py --num-tokens 4096 --dtype bf16

Forward and backward through torch.compile, as blocks of a model run them; kernels take turns in one process. On a CPU
the time is this process's CPU time of one thread, on a GPU the time between two events on its stream.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.models.attention.auto import Auto
from lmtrain.models.attention.base import Attention, KernelTarget
from lmtrain.models.attention.blocked import Blocked
from lmtrain.models.attention.eager import Eager
from lmtrain.models.attention.flash import Flash
from lmtrain.models.attention.flex import Flex
from lmtrain.models.attention.sdpa import SDPA

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
KERNELS = {"eager": Eager(), "sdpa": SDPA(), "blocked": Blocked(), "flex": Flex(), "flash": Flash(), "auto": Auto()}


@dataclass
class Case:
    """One kernel at work on one kind of mask."""

    name: str
    step: Callable[[], list[Tensor]]
    results: list[Tensor]
    seconds: list[float] = field(default_factory=list[float])


def main() -> None:
    """Print one table row a kernel and mask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-tokens", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, nargs=2, default=(2, 2), metavar=("Q", "KV"))
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--window-tokens", type=int, default=64)
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    place = KernelTarget(
        device_type=device.type, dtype=DTYPES[arguments.dtype], head_width=arguments.head_width, is_compiled=True
    )
    kernels = _fitted(place)
    shapes = [(arguments.batch, heads, arguments.num_tokens, arguments.head_width) for heads in arguments.heads]
    inputs = [
        torch.randn(shape, device=device, dtype=place.dtype, requires_grad=True)
        for shape in (shapes[0], shapes[1], shapes[1])
    ]
    documents = (torch.rand(shapes[0][0], arguments.num_tokens, device=device) < 0.01).cumsum(1).int()
    print(f"q {shapes[0]}, k and v {shapes[1]}, {arguments.dtype}, forward and backward, compiled")
    print("| mask | kernel | ms | of eager | values off by | gradients off by |\n|---|---|---|---|---|---|")
    for mask, window, of_rows in (
        ("causal", None, None),
        (f"window of {arguments.window_tokens}", arguments.window_tokens, None),
        ("documents", None, documents),
    ):
        cases = [_case(name, kernel, inputs, window, of_rows) for name, kernel in kernels.items()]
        _take_turns(cases, rounds=arguments.rounds, device=device)
        _report(mask, cases)


def _fitted(place: KernelTarget) -> dict[str, Attention]:
    kernels: dict[str, Attention] = {}
    for name, option in KERNELS.items():
        try:
            kernels[name] = option.fitted(place)
            print(kernels[name].describe(place))
        except (ConfigurationError, EnvironmentProblem) as problem:
            print(f"{name} left out: {problem}")
    return kernels


def _case(
    name: str, kernel: Attention, inputs: list[Tensor], window_tokens: int | None, documents: Tensor | None
) -> Case:
    prepared = kernel.prepare(
        documents, num_tokens=inputs[0].shape[2], windows=(window_tokens,), device=inputs[0].device
    )
    seen = documents if prepared is None else prepared

    torch.compiler.reset()  # or all cases count as versions of one function, of which torch allows eight

    @torch.compile(fullgraph=True, dynamic=False)
    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernel(q, k, v, window_tokens=window_tokens, documents=seen)

    def step() -> list[Tensor]:
        result = mix(*inputs)
        return [result, *torch.autograd.grad(result.float().square().sum(), inputs)]

    return Case(name, step, step())


def _take_turns(cases: list[Case], *, rounds: int, device: torch.device) -> None:
    for turn in range(rounds):
        for case in cases if turn % 2 else reversed(cases):
            case.seconds.append(_seconds(case.step, device=device))


def _seconds(step: Callable[[], list[Tensor]], *, device: torch.device, num_steps: int = 4) -> float:
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(num_steps):
            step()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / num_steps
    began = time.process_time()
    for _ in range(num_steps):
        step()
    return (time.process_time() - began) / num_steps


def _report(mask: str, cases: list[Case]) -> None:
    reference = next(case for case in cases if case.name == "eager")
    for case in cases:
        ratio = statistics.median(own / base for own, base in zip(case.seconds, reference.seconds, strict=True))
        off = [
            (own.float() - base.float()).abs().max().item() / base.float().abs().max().item()
            for own, base in zip(case.results, reference.results, strict=True)
        ]
        milliseconds = statistics.median(case.seconds) * 1e3
        print(f"| {mask} | {case.name} | {milliseconds:.2f} | {ratio:.2f} | {off[0]:.1e} | {max(off[1:]):.1e} |")


if __name__ == "__main__":
    main()
