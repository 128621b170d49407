"""How long a checkpoint holds training up: written in place, and behind it by another process.

A state as AdamW leaves it (fp32 weights and two moments) is saved both ways in turns, in one process. The stall is from
the moment when the device has nothing left to do until the trainer may go on; on a GPU also what the copy then takes
beside computing, as the time of matrix products with and without it.

    python benchmarks/questions/checkpoint_stall.py                                # 100 M parameters, about two minutes
    python benchmarks/questions/checkpoint_stall.py --parameters 1.24B --device cuda --rounds 3
    python benchmarks/questions/checkpoint_stall.py --json stall.json --markdown stall.md
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.training.checkpointing.background_writer import BackgroundWriter
from lmtrain.training.checkpointing.staging import num_state_bytes
from lmtrain.training.checkpointing.state_file import WriteState

TENSOR_ELEMENTS = 2048 * 2048


def make_state(num_parameters: int, device: torch.device) -> dict[str, Any]:
    """Make weights and both moments of so many parameters, in tensors of a usual size."""
    sizes = [TENSOR_ELEMENTS] * (num_parameters // TENSOR_ELEMENTS) + [num_parameters % TENSOR_ELEMENTS]

    def tensors() -> list[torch.Tensor]:
        return [torch.randn(size, device=device) for size in sizes if size]

    return {"state_dict": tensors(), "exp_avg": tensors(), "exp_avg_sq": tensors(), "lmtrain": {"step": 1}}


def timed(action: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of this process that an action takes, once the device is idle."""
    synchronize(device)
    began, began_cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - began, time.process_time() - began_cpu


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def products(device: torch.device, *, seconds: float = 1.0) -> Callable[[], float]:
    """Return a function that computes for about so long, and returns the milliseconds of a product (GPU only)."""
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)

    def run(count: int) -> float:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(count):
            torch.mm(x, x)
        synchronize(device)
        return 1e3 * (time.perf_counter() - began) / count

    run(5)
    count = max(1, round(1e3 * seconds / run(20)))
    return lambda: run(count)


def measure(num_parameters: int, device: torch.device, *, rounds: int, folder: Path) -> dict[str, Any]:
    """Save in place and behind in turns; the first turn, which also finds memory, is told apart."""
    state = make_state(num_parameters, device)
    writer = BackgroundWriter(device)
    found, _ = timed(lambda: writer.prepare(num_state_bytes(state)), device)
    deadline = time.monotonic() + 120
    while not writer._mapping and time.monotonic() < deadline:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        writer.poll()
        time.sleep(0.01)
    compute = products(device) if device.type == "cuda" else None
    turns: list[dict[str, float]] = []
    for _ in range(rounds):
        in_place, in_place_cpu = timed(WriteState(state, folder / "step_00000001"), device)
        alone = compute() if compute else 0.0
        behind, behind_cpu = timed(lambda: writer.start(WriteState(state, folder / "step_00000002")), device)
        beside = compute() if compute else 0.0
        answer = writer.wait()
        assert answer is not None
        assert answer.problem is None, answer.problem
        turns.append({
            "in_place_stall_seconds": in_place,
            "in_place_cpu_seconds": in_place_cpu,
            "behind_stall_seconds": behind,
            "behind_cpu_seconds": behind_cpu,
            "behind_write_seconds": answer.seconds,
            "product_milliseconds": alone,
            "product_milliseconds_beside_copy": beside,
            "bytes": answer.num_bytes,
        })  # fmt: skip
    writer.close()
    medians = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    return {"prepare_seconds": found, "first_behind_stall_seconds": turns[0]["behind_stall_seconds"], **medians}


def markdown(result: dict[str, Any]) -> str:
    """Write the result as a table."""
    gigabytes = result["bytes"] / 1e9
    rows = [
        f"{result['parameters']:,} parameters, {gigabytes:.2f} GB, {result['hardware']}, torch {result['torch']}, "
        f"{result['threads']} threads, medians of {result['rounds']} turns.",
        "",
        "| | stall, s | stall, CPU s of the trainer | write, s |",
        "|---|---|---|---|",
        f"| in place | {result['in_place_stall_seconds']:.3f} | {result['in_place_cpu_seconds']:.3f} | the stall |",
        f"| behind | {result['behind_stall_seconds']:.3f} | {result['behind_cpu_seconds']:.3f} "
        f"| {result['behind_write_seconds']:.2f} |",
        f"| behind, the first | {result['first_behind_stall_seconds']:.3f} | | |",
    ]
    if result["product_milliseconds"]:
        alone, beside = result["product_milliseconds"], result["product_milliseconds_beside_copy"]
        rows += ["", f"A product of two 8192 x 8192 bf16 matrices: {alone:.2f} ms, beside the copy {beside:.2f} ms."]
    return "\n".join([*rows, ""])


def main() -> None:
    """Measure, and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", default="100M")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; default: a temporary folder")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    num_parameters = int(parse_quantity(arguments.parameters))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        measured = measure(num_parameters, device, rounds=arguments.rounds, folder=Path(folder))
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    facts = {
        "parameters": num_parameters,
        "hardware": f"{hardware}, {os.cpu_count()} cores",
        "rounds": arguments.rounds,
    }
    result = {**facts, "torch": torch.__version__, "threads": torch.get_num_threads(), **measured}
    print(json.dumps(result, indent=1))
    print(markdown(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text("# What a checkpoint holds up\n\n" + markdown(result))


if __name__ == "__main__":
    main()
