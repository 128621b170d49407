"""docs/reliability.md as text, from the rows, the tests' outcomes and the campaigns' figures."""
# ruff: noqa: E501  # rows of tables

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

from benchmarks.harness.reliability.rows import ROWS, SYSTEMS, Row

HEAD: Final = """# Reliability

A fault, a promise, the test that holds lmtrain to it, with real processes unless the row says otherwise, and that test's
result when this page was written. "Exact" means the losses of a run that nobody touched, bit for bit on one rank; other
numbers of ranks sum in another order: in the tests' 24 steps they stay within 2e-6, and drift on with Muon's products in bf16
([parallelism](parallelism.md)). `make test-faults` runs the suite (`-m faults`), `make test`
all tests below, and `python benchmarks/questions/reliability_page.py --run` those of the table, and writes this page.

The last column has what torchtitan, OLMo-core, Composer, NVRx, Lightning and nanochat say or test of the fault, by their own
sources as read in 2026; "(run)": seen of Lightning 2.6.6 as it comes. A system not named, or "—": nothing was found there,
which is no proof of absence.

| fault | promise | test | result | elsewhere |
|---|---|---|---|---|
"""
RESULTS: Final = {"passed": "passed", "failure": "FAILED", "error": "FAILED", "skipped": "skipped here"}
CAMPAIGNS: Final = """
## Campaigns

Too long for a test; each is a command of `benchmarks/questions/`, recorded on two cores of a shared machine on 26 November 2026.
"""
TAIL: Final = """
## Silent corruption

`health.recompute_every_steps=N` does the first micro-batch of every N-th step twice before the step, by the same random
numbers, and compares the bits of its loss and, where the model is whole and the device repeats its own results (a CPU, or
`deterministic=true`), of every gradient; shards compare their loss. It costs two more micro-batches each time.
`health.compare_replicas_every_steps=N` compares a sum over the bits of every weight between ranks with copies (`ddp`,
`hsdp`): of three or more the one apart is named, of two both. A difference ends the run with exit code 3, naming rank,
machine and tensor. Both are off (`null`) by default, and then no hook of a step is there to be called.
On a GPU: not run.

## Going back from a spike

[`spikes=rewind`](schedules_and_gradients.md#gradients). The text of a step that went wrong:
[`lmtrain data show`](runs.md#the-text-of-a-step).
"""
END: Final = """
## Not held

By no test or campaign: a run of weeks, a lost node's disk, object storage, a GPU's faults on a GPU.

## Found nowhere else

Copies of the weights compared, with the rank named (Megatron re-runs a step, "alpha, not tested at scale" by its own text); the
text of a past step of pretraining; a ledger that adds up to the clock, lost steps included.
"""


def page(kept: Mapping[str, Any], *, long_runs: str) -> str:
    """Return the page; `long_runs` is its section of the soak, written by hand."""
    lines = [HEAD.rstrip("\n")]
    lines += [
        f"| {row.fault} | {row.promise} | [{PurePath(row.file).stem}](../tests/{row.file}) `{row.test}` "
        f"| {RESULTS.get(kept['tests'].get(f'tests/{row.file}::{row.test}'), 'not run')} | {_elsewhere(row)} |"
        for row in ROWS
    ]
    lines += [CAMPAIGNS.rstrip("\n"), *_campaigns(kept["campaigns"]), "", long_runs.strip(), TAIL.rstrip("\n"), ""]
    return "\n".join(lines) + "\n" + END


def _elsewhere(row: Row) -> str:
    said = [f"{name}: {row.elsewhere[name]}" for name in SYSTEMS if name in row.elsewhere]
    return "; ".join(said) or "—"


def _campaigns(found: Mapping[str, Any]) -> Iterator[str]:
    if crashes := found.get("crash_states"):
        yield "\n### Power cuts and kills in simulated file-system order\n"
        num_states = sum(one["states"] for one in crashes["kinds"].values())
        yield f"`python benchmarks/questions/crash_states.py`, {num_states:,} states. strace records every system call of a run's"
        yield "saves, its SIGKILL and its resume; they are replayed to a random point, and writes without an fsync are kept,"
        yield "lost, torn or reordered. The reading code of `resume=auto` has to find the newest checkpoint whose save had"
        yield "returned, or a newer one, with every byte, and the curve up to it; some states train on to the end.\n"
        yield "| saves | changes recorded | states | at different points | trained to the end, exact | lost or wrong |"
        yield "|---|---|---|---|---|---|"
        for kind, one in crashes["kinds"].items():
            yield (
                f"| {kind} | {one['changes']:,} | {one['states']:,} | {one['different_points']:,} | {one['resumed']} "
                f"| {one['problems']} |"
            )
    if kills := found.get("kills"):
        yield "\n### Kills of real processes\n"
        seeds = ", ".join(map(str, kills["seeds"]))
        yield f"`python benchmarks/questions/kills.py --kills N --seed S`, seeds {seeds}: SIGKILL at random moments, one to three times"
        yield "a run, then the same command until the end; losses, weights and optimizer state against an untouched run's.\n"
        yield "| kind of run | kills |"
        yield "|---|---|"
        yield from (f"| {kind} | {number} |" for kind, number in kills["kills_by_kind"].items())
        yield (
            f"| all: {kills['runs']} runs, {kills['cpu_seconds']:,} CPU seconds | {kills['kills']}; "
            f"differing runs: {len(kills['problems'])} |"
        )
    if mutations := found.get("mutations"):
        yield "\n### Mutations\n"
        yield "`python benchmarks/questions/mutations.py --trials 100000`: one file changed at a time, then the reading code of a"
        yield "real start. Unchanged content is a manifest with another space, or a file nobody reads.\n"
        yield "| of | trials | refused | refused by an exception of another kind | read, content unchanged | another content loaded |"
        yield "|---|---|---|---|---|---|"
        for kind, one in mutations.items():
            counts = [one.get(name, 0) for name in ("trials", "refused", *OTHERS)]
            yield f"| {kind} | {' | '.join(f'{number:,}' for number in counts)} |"
    if day := found.get("preempted_day"):
        goodput = day["goodput"]
        yield "\n### A day of preemptions\n"
        yield f"`python benchmarks/questions/preempted_day.py --hours {day['hours']:g}`: {day['hours']:g} hours, killed at random every"
        yield f"{day['minutes_between_kills']:g} minutes on average; {day['start_seconds']:g} s from a start to its first step, a"
        yield f"checkpoint every {day['save_every_seconds']:g} s with a stall of {day['save_seconds']:g} s.\n"
        yield "| kills | goodput by the ledger | by the last step | planned beforehand |"
        yield "|---|---|---|---|"
        yield (
            f"| {day['kills']} | {goodput['ledger']:.1%} | {goodput['last_step_x_step_seconds_of_the_day']:.1%} "
            f"| {goodput['planned']:.1%} |\n"
        )
        yield "The runs are real and killed by SIGKILL; the clock is simulated: a start, a step and a save take as long as stated."
        yield "Stated, not measured here: the seconds of a start and of a save's stall."


OTHERS: Final = (
    "refused by an exception of another kind", "loaded, the same content", "loaded with another content",
)  # fmt: skip
