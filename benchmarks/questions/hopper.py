"""One Hopper GPU against its marks, in one command: speed, overhead, stalls, memory, start, numerics, profile.

    python benchmarks/questions/hopper.py --hardware h200              # a GPU, no network: writes results/hopper_h200.*
    python benchmarks/questions/hopper.py --only speed --cases gpt2_124m --variants bf16 whole_step --out FOLDER
    python benchmarks/questions/hopper.py --merge FILE FILE --hardware h200   # join the reports of several calls
    python benchmarks/questions/hopper.py --page --hardware h200       # only the page, from the JSON that there is
    python benchmarks/questions/hopper.py                              # a CPU: every part as a toy; keeps nothing

Every row is in the JSON as soon as it is measured, so that a call that is cut short loses one row; a row measured by an
earlier call in the same folder stays and is not measured again without `--again`. A folder gets at most eight files, of
at most 16 MiB each. The peers take part where `--peers FOLDER` has checkouts of them, as in
`benchmarks/questions/train_step.py`. Exit code 3: rows were given up.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.harness.hopper.cases import CASES
from benchmarks.harness.hopper.deadline import GIVEN_UP
from benchmarks.harness.hopper.marks_page import marks, page
from benchmarks.harness.hopper.parts import PARTS, require_known
from benchmarks.harness.hopper.report_file import keep_row, merged, read, require_same_device, write
from benchmarks.harness.hopper.rows import Bench, this_machine

RESULTS: Final = Path(__file__).parents[1] / "results"
COMMAND: Final = "python benchmarks/questions/hopper.py --hardware h200"
MOST_FILES, MOST_BYTES = 8, 16 * 2**20  # of a folder to bring back; two of them are JSON and page
ROW_SECONDS: Final = 600.0


def measure(names: Sequence[str], *, bench: Bench, scratch: Path, path: Path) -> int:
    """Measure parts into the report at `path`, which is whole after every row; return the number of rows given up.

    Raises:
        ValueError: Its rows are of another device.
    """
    report = read(path)
    here = {"device": bench.name, "is_toy": bench.is_toy}
    require_same_device(report, here, path=path)
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "driver": driver_version()}
    report |= here | versions | {"date": time.strftime("%Y-%m-%d")}
    num_given_up = 0
    for name in names:
        rows: list[dict[str, Any]] = report["parts"].setdefault(name, [])
        for row in PARTS[name](bench, scratch):
            keep_row(rows, row)
            write(report, path)
            told: str = row.get("not_measured", "measured")
            num_given_up += told.startswith(GIVEN_UP)
            print(f"{name}, {row.get('model', '')}: {told}", file=sys.stderr, flush=True)
    write(report, path)
    return num_given_up


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver, None without one."""
    path = Path("/proc/driver/nvidia/version")
    return path.read_text().splitlines()[0] if path.is_file() else None


def keep_traces(scratch: Path, out: Path) -> None:
    """Copy traces into a folder while it has room for them."""
    for trace in sorted(scratch.glob("*.trace.json.gz")):
        others = [path for path in out.iterdir() if path.name.endswith(".trace.json.gz") and path.name != trace.name]
        if trace.stat().st_size <= MOST_BYTES and len(others) < MOST_FILES - 2:
            shutil.copy(trace, out / trace.name)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS))
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES], default=[])
    parser.add_argument("--variants", nargs="+", default=[], help="rows of the parts, such as bf16 and fp8 of speed")
    parser.add_argument("--row-seconds", type=float, default=ROW_SECONDS, help="after which a row is given up")
    parser.add_argument("--again", action="store_true", help="measure rows again that the folder has already")
    parser.add_argument("--toy", action="store_true", help="narrow models on a GPU too")
    parser.add_argument("--hardware", default="here", help="word for the file names, such as h200")
    parser.add_argument("--out", type=Path, help="folder of JSON, page and traces; benchmarks/results with --hardware")
    parser.add_argument("--scratch", type=Path, help="folder of runs and caches, kept; a temporary one without")
    parser.add_argument("--peers", default="", help="folder of checkouts: nanoGPT, litgpt, nanochat, OLMo-core, ...")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="reports to join; nothing is measured")
    parser.add_argument("--page", action="store_true", help="measure nothing, render the page again")
    arguments = parser.parse_args()
    arguments.is_kept = arguments.out is not None or arguments.hardware != "here"
    arguments.out = arguments.out or RESULTS
    try:
        require_sense(arguments)
    except ValueError as problem:
        parser.error(str(problem))
    return arguments


def require_sense(arguments: argparse.Namespace) -> None:
    """Check words against one another, and give `only` its parts.

    Raises:
        ValueError: The first that is wrong.
    """
    if arguments.row_seconds <= 0:
        raise ValueError(f"--row-seconds {arguments.row_seconds:g}: above 0")
    arguments.only = [name for name in PARTS if name in (arguments.only or PARTS)]
    if arguments.peers and not Path(arguments.peers).is_dir():
        raise ValueError(f"--peers {arguments.peers}: there is no such folder; it holds a checkout of each peer")
    is_measured = not (arguments.page or arguments.merge)
    if is_measured and arguments.is_kept and arguments.out == RESULTS and this_machine(is_toy=arguments.toy).is_toy:
        raise ValueError(
            "--hardware: a toy's figures are not kept among the results; --out FOLDER keeps them elsewhere"
        )
    require_known(arguments.variants, parts=arguments.only)


def fill(arguments: argparse.Namespace, path: Path, scratch: Path) -> int:
    """Fill the report as asked for, joined or measured part by part; return the number of rows given up."""
    if arguments.merge:
        write(merged(arguments.merge), path)
    elif not arguments.page:
        return measure(arguments.only, bench=bench_of(arguments, path), scratch=scratch, path=path)
    return 0


def bench_of(arguments: argparse.Namespace, path: Path) -> Bench:
    """Return this machine with what is asked of it, and what the report has already."""
    held = {} if arguments.again else read(path)["parts"]
    chosen = {"cases": arguments.cases, "variants": arguments.variants, "row_seconds": arguments.row_seconds}
    return this_machine(is_toy=arguments.toy, peers=arguments.peers, held=held, **chosen)


def main() -> int:
    """Measure, print the page, and keep it where it has a folder."""
    arguments = parse()
    temporary = Path(tempfile.mkdtemp(prefix="hopper-"))
    scratch: Path = (arguments.scratch or temporary).absolute()
    out: Path = (arguments.out if arguments.is_kept else temporary / "out").absolute()
    for folder in (scratch, out):
        folder.mkdir(parents=True, exist_ok=True)
    path = out / f"hopper_{arguments.hardware}.json"
    try:
        given_up = fill(arguments, path, scratch)
        report = read(path)
        text = page(report | {"command": COMMAND})
        if arguments.is_kept:
            path.with_suffix(".md").write_text(text)
            if out != RESULTS:
                keep_traces(scratch, out)
        print(text)
        print(marks(report))  # once more: the end of what was printed is what a log keeps
    except ValueError as problem:
        print(f"hopper.py: error: {problem}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if given_up:
        print(f"hopper.py: {given_up} rows given up; the same call measures them", file=sys.stderr)
    return 3 if given_up else 0


if __name__ == "__main__":
    sys.exit(main())
