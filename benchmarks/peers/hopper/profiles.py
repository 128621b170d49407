"""A few steps of the bare loop under torch's profiler: device time by kind of kernel, and a trace for a browser.

python -m benchmarks.peers.hopper.profiles TASK OUT NAME
"""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness.train_step.task import load_task
from benchmarks.peers.hopper.bare import BareLoop
from benchmarks.peers.hopper.own_run import make_run

KINDS: Final = {  # the first pattern that a kernel's name matches
    "attention": r"flash|fmha|sdpa|attention|blocked",
    "products": r"gemm|nvjet|cutlass|xmma|cublas|aten::mm|aten::addmm|aten::bmm|aten::linear",
    "optimizer": r"adam|multi_tensor|foreach",
    "copies": r"memcpy|memset",
    "elementwise": r".",
}
TOP: Final = 25


def kind_of(kernel: str) -> str:
    """Name what a kernel works on."""
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE))


def is_counted(event: Any, *, on_gpu: bool) -> bool:
    """Tell whether an event is a kernel; an annotation spans kernels counted by themselves."""
    if not on_gpu:
        return bool(event.key.startswith("aten::"))
    return str(event.device_type).endswith("CUDA") and not event.is_user_annotation


def profiled(loop: BareLoop, device: torch.device, *, num_steps: int, trace: Path) -> dict[str, Any]:
    """Return seconds a step by kind and of the largest kernels; on a CPU, operators take the place of kernels."""
    on_gpu = device.type == "cuda"
    for _ in range(3 if num_steps < 5 else 10):
        loop.step()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as prof:
        for _ in range(num_steps):
            loop.step()
        if on_gpu:
            torch.cuda.synchronize()
    prof.export_chrome_trace(str(trace))
    seconds: dict[str, float] = {}
    for event in prof.key_averages():
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if spent and is_counted(event, on_gpu=on_gpu):
            seconds[event.key] = seconds.get(event.key, 0.0) + spent / 1e6 / num_steps
    kinds = dict.fromkeys(KINDS, 0.0)
    for kernel, spent in seconds.items():
        kinds[kind_of(kernel)] += spent
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:TOP]
    return {"seconds_by_kind": kinds, "largest": [{"kernel": name[:120], "seconds": spent} for name, spent in largest]}


def main() -> None:
    """Profile and write NAME.json and NAME.trace.json.gz."""
    task, out, name = load_task(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(task.threads)
    device = torch.device(task.device)
    _, run = make_run(task, name=f"profile-{name}", more=("logger=none",))
    found = profiled(BareLoop(run, device), device, num_steps=3, trace=out / f"{name}.trace.json.gz")
    (out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
