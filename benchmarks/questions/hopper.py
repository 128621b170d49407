"""One Hopper GPU against its marks, in one command: speed, overhead, stalls, memory, start, numerics, profile.

    python benchmarks/questions/hopper.py --hardware h200              # a GPU, no network: writes results/hopper_h200.*
    python benchmarks/questions/hopper.py --only speed --out FOLDER    # a part at a time, where calls are short
    python benchmarks/questions/hopper.py --page --hardware h200       # only the page, from the JSON that there is
    python benchmarks/questions/hopper.py                              # a CPU: every part as a toy; keeps nothing

First the ceilings (`benchmarks/questions/ceilings.py` beside this), then the parts in order. Every row is in the JSON
as soon as it is measured, so that a call that is cut short loses one row; rows of earlier calls in the same folder
stay until they are measured again, and `--merge` joins reports of several folders. The peers take part where
`--peers FOLDER` has checkouts of them, as in `benchmarks/questions/train_step.py`.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.harness.hopper.cases import CASES, composed
from benchmarks.harness.hopper.ceiling_shares import plot, shares
from benchmarks.harness.hopper.marks_page import page
from benchmarks.harness.hopper.parts import PARTS
from benchmarks.harness.hopper.rows import Bench, this_machine
from benchmarks.questions.ceilings import PARTS as CEILINGS
from benchmarks.questions.ceilings import driver_version
from benchmarks.questions.ceilings import measure as measure_ceilings
from benchmarks.questions.ceilings import page as ceilings_page

RESULTS: Final = Path(__file__).parents[1] / "results"
COMMAND: Final = "python benchmarks/questions/hopper.py --hardware h200"
NAMED_BY: Final = ("model", "precision", "loop", "path", "start", "what")


def measure(names: list[str], *, bench: Bench, scratch: Path, path: Path) -> dict[str, Any]:
    """Measure parts into the report at `path`, which is whole after every row, and return it."""
    report = read(path)
    report |= {
        "device": bench.name,
        "is_toy": bench.is_toy,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": driver_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    for name in names:
        rows: list[dict[str, Any]] = report["parts"].setdefault(name, [])
        for row in PARTS[name](bench, scratch):
            keep_row(rows, row)
            path.write_text(json.dumps(report, indent=1) + "\n")
            told = row.get("not_measured", "measured")
            print(f"{name}, {row.get('model', '')}: {told}", file=sys.stderr, flush=True)
    return report


def keep_row(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """Put a row into the place of the one of the same measurement; a measured one gives way to a measured one alone."""
    place = next((place for place, held in enumerate(rows) if named(held) == named(row)), None)
    if place is None:
        rows.append(row)
    elif "not_measured" not in row or "not_measured" in rows[place]:
        rows[place] = row


def named(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a row is of."""
    return tuple(row.get(key) for key in NAMED_BY)


def merged(paths: list[Path]) -> dict[str, Any]:
    """Return one report of several, each perhaps begun in an empty folder, later ones last.

    Raises: ValueError where they are of different devices.
    """
    found = read(paths[0])
    for path in paths[1:]:
        other = read(path)
        if (found["device"], found["is_toy"]) != (other["device"], other["is_toy"]):
            raise ValueError(f"{path} is of {other['device']}, and {paths[0]} of {found['device']}: one page each.")
        parts = found["parts"]
        found |= other | {"parts": parts}
        for name, rows in other["parts"].items():
            for row in rows:
                keep_row(parts.setdefault(name, []), row)
    return found


def read(path: Path) -> dict[str, Any]:
    """Return the report at a path, or one without any part."""
    return json.loads(path.read_text()) if path.is_file() else {"device": "", "is_toy": False, "parts": {}}


def shares_of(report: dict[str, Any], out: Path, hardware: str) -> str:
    """Draw how near each part comes to its ceiling, where both were measured, and return the page's last section."""
    path = out / f"ceilings_{hardware}.json"
    profile = report["parts"].get("profile", [])
    if not path.is_file() or not profile:
        return ""
    batches = {case.name: composed(case, is_toy=report["is_toy"])["batch"] for case in CASES}
    num_tokens = {name: batch["micro_batch_sequences"] * batch["context_tokens"] for name, batch in batches.items()}
    found = shares(json.loads(path.read_text())["parts"], profile, num_tokens=num_tokens)
    (out / f"hopper_{hardware}.svg").write_text(plot(found))
    return f"\n## Share of the measured ceilings\n\n![by part of the step](hopper_{hardware}.svg)\n"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["ceilings", *PARTS], default=["ceilings", *PARTS])
    parser.add_argument("--toy", action="store_true", help="narrow models on a GPU too")
    parser.add_argument("--hardware", default="here", help="word for the file names, such as h200")
    parser.add_argument("--out", type=Path, help="folder of JSON, pages and traces; benchmarks/results with --hardware")
    parser.add_argument("--peers", default="", help="folder of checkouts: nanoGPT, litgpt, nanochat, OLMo-core, ...")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="reports to join; nothing is measured")
    parser.add_argument("--page", action="store_true", help="measure nothing, render the page anew")
    arguments = parser.parse_args()
    arguments.is_kept = arguments.out is not None or arguments.hardware != "here"
    arguments.out = arguments.out or RESULTS
    if arguments.peers and not Path(arguments.peers).is_dir():
        parser.error(f"--peers {arguments.peers}: there is no such folder; it holds a checkout of each peer")
    if (
        not arguments.page
        and arguments.out == RESULTS
        and arguments.is_kept
        and this_machine(is_toy=arguments.toy).is_toy
    ):
        parser.error("--hardware: a toy's figures are not kept among the results; --out FOLDER keeps them elsewhere")
    return arguments


def main() -> int:
    """Measure, print the page, and keep it where it has a folder."""
    arguments = parse()
    scratch = Path(tempfile.mkdtemp(prefix="hopper-"))
    out: Path = arguments.out if arguments.is_kept else scratch
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"hopper_{arguments.hardware}.json"
    try:
        report = read(path)
        if arguments.merge:
            report = merged(arguments.merge)
            path.write_text(json.dumps(report, indent=1) + "\n")
        elif not arguments.page:
            bench = this_machine(is_toy=arguments.toy, peers=arguments.peers)
            if "ceilings" in arguments.only:
                stem = out / f"ceilings_{arguments.hardware}"
                found = measure_ceilings(list(CEILINGS), is_toy=bench.is_toy, path=stem.with_suffix(".json"))
                stem.with_suffix(".md").write_text(
                    ceilings_page(found, command="python benchmarks/questions/ceilings.py")
                )
            names = [name for name in PARTS if name in arguments.only]
            report = measure(names, bench=bench, scratch=scratch, path=path)
            for trace in scratch.glob("*.trace.json.gz"):
                if arguments.is_kept and arguments.out != RESULTS:
                    shutil.copy(trace, out / trace.name)
        text = page(report | {"command": COMMAND})
        text += shares_of(report, out, arguments.hardware)
        print(text)
        if arguments.is_kept:
            path.with_suffix(".md").write_text(text)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
