"""What a cure is worth: a run as it is, the same without the cure, and as it is again, one after another."""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.harness.hopper.cases import CASES
from benchmarks.harness.hopper.rows import Bench, Row
from benchmarks.harness.hopper.speeds import Variant, measure

WITHOUT: Final = {  # words that take the cure away, at 1B
    "residual in bf16": ("precision=bf16_mixed",),
    "chunks of 4096 rather than 8192": ("loss.chunk_tokens=8192",),
    "recomputation of selected operations": ("recompute=none",),
    "compiled blocks": ("compile=none",),
}


def rows(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Measure A, B and A of each cure; how far both A are apart tells what a difference is worth."""
    case = CASES[0]
    for cure, words in WITHOUT.items():
        what: Row = {"model": case.name, "what": cure}
        if not bench.wants("cures", cure, **what):
            continue
        if bench.is_toy and not cure.startswith("chunks"):
            yield what | {"not_measured": f"{cure}: runs on a GPU"}
            continue
        yield bench.measured(what, lambda: _compared(words, bench, scratch))  # noqa: B023  called at once


def _compared(words: tuple[str, ...], bench: Bench, scratch: Path) -> Row:
    case = CASES[0]
    tries = (Variant("cure"), Variant("no_cure", words), Variant("cure_again"))
    first, other, again = (measure(case, variant, bench, scratch)["tokens_per_second"] for variant in tries)
    return {
        "tokens_per_second_with": first,
        "tokens_per_second_without": other,
        "tokens_per_second_again": again,
        "worth": statistics.mean([first, again]) / other - 1,
        "noise": abs(first / again - 1),
    }
