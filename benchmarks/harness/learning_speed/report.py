"""Page and JSON of the runs that have finished."""

import json
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.learning_speed.speed import clock_of, ratios
from lmtrain.precision.cpu_features import cpu_name

Run = dict[str, Any]
NAMES = {"ours": "lmtrain, `python train.py`", "nanogpt": "nanoGPT", "litgpt": "litgpt", "nanochat": "nanochat"}
HEAD = (
    "loop", "bits per byte", "deviation", "seeds", "least to most", "ms a step", "against ours (quartiles)", "steps",
    "tokens", "parameters", "rates", "to the first step",
)  # fmt: skip


def keep(runs: Sequence[Run], facts: dict[str, Any], result: Path) -> None:
    """Write page and JSON next to each other; `facts` says how they came about."""
    result.parent.mkdir(parents=True, exist_ok=True)
    told = {
        "date": time.strftime("%Y-%m-%d"),
        "device": cpu_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **facts,
        "runs": list(runs),
    }
    result.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")
    result.with_suffix(".md").write_text(page(told))


def by_loop(runs: Iterable[Run], part: str) -> dict[str, list[Run]]:
    """Group the runs of one part of the benchmark."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run["part"] == part:
            groups[run["loop"]].append(run)
    return dict(sorted(groups.items(), key=lambda item: mean(item[1])))


def mean(runs: Sequence[Run]) -> float:
    """Return the mean bits per byte."""
    return statistics.fmean(run["bits_per_byte"] for run in runs)


def page(told: dict[str, Any]) -> str:
    """Return the page."""
    race = by_loop(told["runs"], "race")
    clock = "CPU seconds of one thread" if told["threads"] == 1 else f"the wall clock, {told['threads']} threads"
    given = ", ".join(f"{NAMES[loop]} {ms:g} ms" for loop, ms in told["known_ms_per_step"].items())
    parts = [
        f"# Learning speed: bits per byte after {told['seconds']:g} s of two cores",
        f"Written by `{told['command']}`; {told['device']}, torch {told['torch']}, Python {told['python']}, "
        f"{told['date']}. Python's standard library, BPE of 4,096, 8 x 256 tokens a step, 4 layers of 128; all "
        f"{race_bytes(told['runs']):,} held-out bytes in windows of 256, every token but the first predicted once, one "
        "function on the logits of every loop.",
        "**Seconds became steps before anything was trained, so that no load on the machine changes a result.** A step "
        f"of every loop was timed in interleaved turns ({clock}, compiled, warm); "
        + (f"known from an idle machine: {given}. " if given else "the least of our turns counts as idle. ")
        + f"Each loop then trained for as many steps as {told['seconds']:g} s hold, its own schedule laid over them, "
        "on one thread. Compiling, warming up, evaluating, saving and sampling are outside for all of them.",
        table([HEAD, *(_row(loop, runs, told) for loop, runs in race.items())]),
        *_differences(race),
        "## How each was tuned",
        "Ours was not tuned here: its defaults were chosen earlier, on these same validation files, after about 30 "
        "looks. The peers began at settings from earlier tries on these files (the best of three of nanochat, the only "
        "one of litgpt and nanoGPT); then all their learning rates were multiplied by each factor at a quarter of the "
        "steps, first seed, and the best was taken. All read the same rows in the same order for the same seed.",
        *_sweeps(told["runs"]),
        *_ablations(told["runs"]),
        "## What each was given",
        "\n".join(f"- {NAMES[loop]}: {runs[0]['given']}." for loop, runs in race.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def race_bytes(runs: Iterable[Run]) -> int:
    """Return how many held-out bytes the runs were scored on."""
    (num_bytes,) = {run["num_bytes"] for run in runs}
    return num_bytes


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, its first row the head."""
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *others])


def _row(loop: str, runs: Sequence[Run], told: dict[str, Any]) -> list[str]:
    values = sorted(run["bits_per_byte"] for run in runs)
    clock, loops = clock_of(told["threads"]), told["loops"]
    spread = ratios(loops[loop][clock], loops["ours"][clock])
    low, middle, high = statistics.quantiles(spread, n=4, method="inclusive") if len(spread) > 1 else spread * 3
    steps = runs[0]["num_steps"]
    mine = [run for run in told["runs"] if run["loop"] == loop]
    return [
        NAMES[loop],
        f"**{statistics.fmean(values):.4f}**",
        f"{statistics.stdev(values):.4f}" if len(values) > 1 else "",
        ", ".join(str(run["seed"]) for run in runs),
        f"{values[0]:.4f} to {values[-1]:.4f}",
        f"{told['ms_per_step'][loop]:.0f}",
        "1" if loop == "ours" else f"{middle:.2f} ({low:.2f} to {high:.2f})",
        f"{steps:,}",
        f"{steps * 2048 / 1e6:.2f} M",
        f"{runs[0]['num_parameters'] / 1e6:.2f} M",
        "as they come" if loop == "ours" else f"x {runs[0]['lr_factor']:g}",
        f"{min(each['first_step_seconds'] for each in [loops[loop], *mine]):.0f} s",
    ]


def _differences(race: dict[str, list[Run]]) -> list[str]:
    if "ours" not in race or len(race) < 2:
        return []
    ours = {run["seed"]: run["bits_per_byte"] for run in race["ours"]}
    lines = []
    for loop, runs in race.items():
        gaps = [run["bits_per_byte"] - ours[run["seed"]] for run in runs if run["seed"] in ours]
        if loop != "ours" and gaps:
            lines.append(f"{NAMES[loop]} {statistics.fmean(gaps):+.3f} ({min(gaps):+.3f} to {max(gaps):+.3f})")
    first = (
        "`to the first step` is the least of a loop's processes, beside other work; ours and litgpt evaluate before."
    )
    return [f"Beside ours, seed by seed: {'; '.join(lines)}. {first}"]


def _factors(runs: Iterable[Run]) -> list[str]:
    return [f"x {factor:g}" for factor in sorted({run["lr_factor"] for run in runs if run["part"] == "sweep"})]


def _sweeps(runs: Sequence[Run]) -> list[str]:
    rows: list[list[str]] = []
    for loop, swept in by_loop(runs, "sweep").items():
        found = {f"x {run['lr_factor']:g}": f"{run['bits_per_byte']:.4f}" for run in swept}
        rows.append([NAMES[loop], f"{swept[0]['num_steps']:,}", *(found.get(name, "") for name in _factors(runs))])
    return [table([("loop", "steps", *_factors(runs)), *rows])] if rows else []


def _ablations(runs: Sequence[Run]) -> list[str]:
    ablated = by_loop(runs, "ablation").get("ours", [])
    if not ablated:
        return []
    (base, *_) = [run for run in ablated if not run["words"]] or [None]
    rows = [
        [
            " ".join(f"`{word}`" for word in run["words"]) or "the default",
            f"{run['bits_per_byte']:.4f}",
            f"{run['bits_per_byte'] - base['bits_per_byte']:+.4f}" if base and run["words"] else "",
            f"{run['num_parameters'] / 1e6:.2f} M",
        ]
        for run in ablated
    ]
    steps = (
        f"{ablated[0]['num_steps']:,} steps, seed {ablated[0]['seed']} alone: differences within the seeds' are noise."
    )
    return [
        "## What the default's options are worth",
        steps,
        table([("changed", "bits per byte", "beside the default", "parameters"), *rows]),
    ]
