"""The full Trainer's speed at every case, by variant: number formats, a whole step of 524,288 tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.hopper.cases import CASES, Case
from benchmarks.harness.hopper.loops import TRAINER, compare
from benchmarks.harness.hopper.rows import Bench, Row

FP8: Final = ("precision=fp8", "precision.residual=bf16")


@dataclass(frozen=True)
class Variant:
    """Words after a case's own; no `models` are all. A whole step has the experiment's tokens, else one micro-batch."""

    name: str
    words: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    on_cpu: bool = False
    is_whole_step: bool = False


VARIANTS: Final = (
    Variant("bf16", on_cpu=True),
    Variant("fp8", FP8),
    Variant("fp8_head", (*FP8, "precision.head=true"), ("llama_3_2_1b",)),
    Variant("fp32_residual", ("precision=bf16_mixed",), ("llama_3_2_1b",)),
    Variant("whole_step", on_cpu=True, is_whole_step=True),
    Variant("fp8_whole_step", FP8, ("llama_3_2_1b",), is_whole_step=True),
)


def rows(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Measure the full Trainer at every case's full micro-batch by every variant; its peak memory with it."""
    for case, variant in ((case, variant) for case in CASES for variant in VARIANTS):
        what: Row = {"model": case.name, "variant": variant.name}
        if (variant.models and case.name not in variant.models) or not bench.wants("speed", variant.name, **what):
            continue
        if bench.is_toy and not variant.on_cpu:
            yield what | {"not_measured": f"{variant.name} runs on a GPU"}
            continue
        yield bench.measured(what, lambda: measure(case, variant, bench, scratch))  # noqa: B023  called at once


def measure(case: Case, variant: Variant, bench: Bench, scratch: Path) -> Row:
    """Return the row of our Trainer at a case and a variant.

    Raises:
        RuntimeError: Its process took no turn; the message is its reason.
    """
    [row] = compare(
        case,
        [] if bench.is_toy else list(variant.words),
        [TRAINER],
        bench=bench,
        scratch=scratch / f"speed-{case.name}-{variant.name}",
        is_whole_step=variant.is_whole_step,
        count_syncs=(case, variant) == (CASES[1], VARIANTS[0]),  # it slows steps down several times over
        **turns(bench, is_whole_step=variant.is_whole_step),
    )
    if "not_measured" in row:
        raise RuntimeError(row["not_measured"])
    return {name: value for name, value in row.items() if name != "loop"}  # named as the row of a failure is


def turns(bench: Bench, *, is_whole_step: bool) -> dict[str, Any]:
    """Return steps of warming up and two turns; a whole step is as long as many of one micro-batch."""
    if bench.is_toy:
        return {"warm_up_steps": 2, "rounds": 2, "turn_steps": 2}
    return {"warm_up_steps": 1 if is_whole_step else 5, "rounds": 2, "turn_steps": 2 if is_whole_step else 10}
