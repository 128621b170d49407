"""What this device can do at most at what training asks of it: the ceilings that a step is held against.

    python benchmarks/questions/ceilings.py --hardware h200   # on a GPU: the real shapes of three models, a few minutes
    python benchmarks/questions/ceilings.py                   # on a CPU: toys, which show that it runs; nothing is kept
    python benchmarks/questions/ceilings.py --only products attention --out FOLDER

Matrix products (bf16, fp8; forward and both of the backward pass), attention by every kernel, copies, losses, and the
optimizer's step. Shapes are those of the models' own layers. Random numbers, never zeros; CUDA events on a GPU, CPU
seconds otherwise. What cannot run says why. The JSON is written after every part.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.harness.hopper import attention, copies, losses, optimizers, products
from benchmarks.harness.hopper.ceilings_page import page
from benchmarks.harness.hopper.report_file import keep_row, read, require_same_device, write
from benchmarks.harness.hopper.rows import Row, this_machine

RESULTS = Path(__file__).parents[1] / "results"
PARTS: Final = {
    "copies": copies.rows,
    "products": products.rows,
    "attention": attention.rows,
    "losses": losses.rows,
    "optimizer": optimizers.rows,
}


def measure(names: list[str], *, is_toy: bool, path: Path | None = None) -> dict[str, Any]:
    """Measure parts and return the report, which is also at `path` as far as it has come; rows there stay."""
    before = read(path)["parts"] if path else {}
    bench = this_machine(is_toy=is_toy, held=before)
    torch.manual_seed(0)
    if bench.device.type == "cpu":
        torch.set_num_threads(1)
    report: dict[str, Any] = {
        "device": bench.name,
        "is_toy": bench.is_toy,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": driver_version(),
        "date": time.strftime("%Y-%m-%d"),
        "parts": before,
    }
    if path:
        require_same_device(read(path), report, path=path)
    for name in names:
        rows: list[Row] = report["parts"].setdefault(name, [])
        for row in PARTS[name](bench):
            keep_row(rows, row)
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
        if path:
            write(report, path)
        print(f"{name}: {len(report['parts'][name])} rows", file=sys.stderr, flush=True)
    return report


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver, None without one."""
    path = Path("/proc/driver/nvidia/version")
    return path.read_text().splitlines()[0] if path.is_file() else None


def main() -> int:
    """Measure, print the page, and keep it where it has a name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--toy", action="store_true", help="narrow models on a GPU too")
    parser.add_argument("--hardware", help="word for the results' file names, such as h200; a toy keeps none")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON and the page")
    arguments = parser.parse_args()
    is_kept = bool(arguments.hardware) or arguments.out != RESULTS
    stem = arguments.out / f"ceilings_{arguments.hardware or 'here'}"
    if is_kept and arguments.out == RESULTS and this_machine(is_toy=arguments.toy).is_toy:
        parser.error("--hardware: a toy's figures are not kept among the results; --out FOLDER keeps them elsewhere")
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        report = measure(arguments.only, is_toy=arguments.toy, path=stem.with_suffix(".json") if is_kept else None)
    except ValueError as problem:
        parser.error(str(problem))
    text = page(report, command="python benchmarks/questions/ceilings.py " + " ".join(sys.argv[1:]))
    print(text)
    if is_kept:
        stem.with_suffix(".md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
