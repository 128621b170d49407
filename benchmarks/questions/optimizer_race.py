"""Every optimizer at its own learning rate, and every precision that a CPU computes, on one budget: a table and a plot.

It types what a person would: `python train.py -m experiment=optimizer_race ...`, then `lmtrain compare`. A run that has
finished is not trained again, so that an interrupted race goes on where it was.

    python benchmarks/questions/optimizer_race.py                        # all of it: about an hour of one core
    python benchmarks/questions/optimizer_race.py --other-seeds 1        # three seeds for AdamW and Muon alone
    python benchmarks/questions/optimizer_race.py --only-report          # table and plot of the runs that have finished
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
RESULT = PROJECT / "benchmarks/results/optimizer_race_zen4_2cores_202611"
BASELINE = "adamw_two_rates"
RIVAL = "muon_plain"
OTHERS = "adamw,adamw_8bit,schedule_free,muon,adafactor,lion,rmsprop,adagrad,momentum,sgd"
PRECISIONS = "bf16_mixed,bf16_true,fp16_mixed"
LESS_FLOPS = "3.75e11"  # three quarters of the experiment's 5e11


def sweeps(*, seeds: str, other_seeds: str) -> dict[str, list[list[str]]]:
    """Return the words of each sweep, by the folder of runs that it belongs to."""
    rounded = ["precision=bf16_true", "precision.stochastic_rounding=true"]
    return {
        "race": [
            [f"optimizer={BASELINE},{RIVAL}", f"seed={seeds}"],
            [f"optimizer={OTHERS}", f"seed={other_seeds}"],
        ],
        "precision": [
            [f"optimizer={BASELINE}", f"precision={PRECISIONS}", f"seed={other_seeds}"],
            [f"optimizer={BASELINE}", *rounded, f"seed={other_seeds}"],
        ],
        "three_quarters": [[f"optimizer={RIVAL}", f"budget.flops={LESS_FLOPS}", f"seed={seeds}"]],
    }


def train(root: Path, folder: str, words: list[str]) -> None:
    """Run one sweep; a trial that fails is named in the table and does not end the race."""
    line = ["experiment=optimizer_race", *words, f"run.root={root}", f"run.name={folder}", "logger=none"]
    subprocess.run([sys.executable, PROJECT / "train.py", "-m", *line], check=False, env=_environment())


def compare(*words: str | Path) -> dict[str, Any]:
    """Return what `lmtrain compare ... --json` says."""
    line = [sys.executable, "-m", "lmtrain.cli", "compare", *map(str, words), "--json"]
    done = subprocess.run(line, check=False, stdout=subprocess.PIPE, env=_environment())
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def _environment() -> dict[str, str]:
    known = [str(PROJECT / "src"), str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(known)}


def table(found: dict[str, Any]) -> list[str]:
    """Write a comparison as a table in markdown."""
    head = [
        "| choice | seeds | bits per byte | deviation | beside the baseline | tokens to its end | tokens/s |",
        "|---|---|---|---|---|---|---|",
    ]
    return [*head, *map(_row, found["choices"]), *(f"\n{note}" for note in found["notes"]), *_left_out(found)]


def _row(choice: dict[str, Any]) -> str:
    final, beside, reach = choice["final"], choice["difference"], choice["to_reach_target"]
    deviation = "" if final["standard_deviation"] is None else f"{final['standard_deviation']:.4f}"
    cells = [f"`{choice['choice']}`", str(final["num"]), f"{final['mean']:.4f}", deviation, _beside(beside)]
    cells.append(_reached(reach))
    return f"| {' | '.join(cells)} | {choice['tokens_per_second'] or 0:,.0f} |"


def _reached(reach: dict[str, Any]) -> str:
    if reach["tokens"] is None:
        return "never"
    share = "" if reach["of_baseline"] is None else f", {reach['of_baseline']:.0%}"
    return f"{reach['tokens'] / 1e3:.0f} K{share}"


def _beside(difference: dict[str, Any] | None) -> str:
    if difference is None:
        return "the baseline"
    noise = {None: "", True: " (noise)", False: ""}[difference["is_noise"]]
    width = "" if difference["plus_minus"] is None else f" ± {difference['plus_minus']:.4f}"
    return f"{difference['mean']:+.4f}{width}{noise}"


def _left_out(found: dict[str, Any]) -> list[str]:
    return [f"\nLeft out: {name}: {reason}." for name, reason in found["left_out"].items()]


def report(root: Path) -> str:
    """Return the page."""
    baseline = f"optimizer={BASELINE}"
    everything = compare(root / "race", root / "precision", "--baseline", baseline)
    less = compare(root / "race", root / "three_quarters", "--baseline", baseline)
    kept = [choice for choice in less["choices"] if BASELINE in choice["choice"] or RIVAL in choice["choice"]]
    budget = next(choice for choice in everything["choices"] if choice["choice"] == baseline)
    held_out = everything["held_out"]
    lines = [
        "# The optimizer race",
        "",
        "Written by `python benchmarks/questions/optimizer_race.py`; nothing here is typed.",
        f"{platform.machine()}, {os.cpu_count()} cores, other work beside it: tokens/s are not a benchmark.",
        "",
        f"A plain Llama of width 64 on {budget['tokens'] / 1e3:.0f} K tokens ({budget['flops']:.2g} FLOPs by PaLM's",
        f"count) of {held_out['source']}; bits per byte of {held_out['num_bytes']:,} held-out bytes. Differences have",
        "a 95 % interval over the seeds that both have; one seed alone stands beside the same seed of the baseline,",
        "without an interval. The last but one column is the tokens until the mean curve is where",
        f"`{baseline}` ends, {everything['target']:.4f}.",
        "",
        *table(everything),
        "",
        "## Three quarters of the budget",
        "",
        "A curve is read before its learning rate has come down, where it is higher than a shorter run's end. So the",
        "fair question is another: where does a run end whose whole schedule takes three quarters of the tokens?",
        "",
        *table(less | {"choices": kept, "notes": [], "left_out": {}}),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train what is not trained, then write table and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3", help="of AdamW and Muon (%(default)s)")
    parser.add_argument("--other-seeds", default="1,2,3", help="of all others, and of the precisions (%(default)s)")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of the runs (%(default)s)")
    parser.add_argument("--result", type=Path, default=RESULT, help="page and plot, without their suffix")
    parser.add_argument("--only-report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    if not arguments.only_report:
        for folder, lines in sweeps(seeds=arguments.seeds, other_seeds=arguments.other_seeds).items():
            for words in lines:
                train(arguments.root, folder, words)
    page = report(arguments.root)
    arguments.result.with_suffix(".md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
