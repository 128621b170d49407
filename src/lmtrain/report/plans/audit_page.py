"""The audit of a step's FLOPs as text."""

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from lmtrain.accounting.model.flop_audit import BATCH, GROUPS, FlopAudit
from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.show import columns, pairs, title_line

WORDS: Final = {
    "palm": "PaLM's (speed/mfu_palm)",
    "causal": "causal: PaLM's without later tokens (speed/mfu_causal)",
    BATCH: "this batch: its own documents and windows",
    "operators": "operators, with recomputation: the hardware's (HFU)",
    "six_n": "6N: no attention",
    "whole context": "whole context: 6N + 12LTD in every layer",
    "all experts": "all experts: PaLM's, those of other tokens too",
}


def page(audit: FlopAudit, *, title: str) -> RenderableType:
    """Lay out the three counts, their differences, and utilization by convention."""
    counts = (audit.formula, audit.counted.by_group, audit.of_batch)
    groups = [group for group in GROUPS if any(group in each for each in counts)]
    rows = [(group, *(_flops(each.get(group, 0.0)) for each in counts)) for group in groups]
    rows.append(("total", *(_flops(sum(each.values())) for each in counts)))
    whole = sum(audit.formula.values())
    differences = [(f"{flops / whole:+.1%}", reason) for reason, flops in audit.differences]
    parts: list[RenderableType] = [
        title_line(f"{title}, audited"),
        columns(rows, head=("FLOPs of a step", "formula", "operators", BATCH)),
        Text("\nDifferences, as shares of the formula", style="bold"),
        pairs(differences, width=8),
        Text("\nBy convention", style="bold"),
        columns(
            [
                (WORDS[name], _flops(flops), *([f"{audit.mfu[name]:.1%}"] if audit.pace else []))
                for name, flops in audit.conventions.items()
            ],
            head=("", "FLOPs a token", *(["MFU"] if audit.pace else [])),
        ),
        *(Text(line) for line in ("", *_notes(audit))),
        *(Text(line, style="bold red") for line in audit.findings),
    ]
    return Group(*parts)


def _flops(number: float) -> str:
    return format_quantity(number, digits=2).replace("B", "G")


def _notes(audit: FlopAudit) -> list[str]:
    batch, pace = audit.batch, audit.pace
    notes = ["Norms, softmax, activations and the optimizer are in none of the counts."]
    if not batch.is_real:
        notes.append("The data is not prepared: each row counts as one document. `lmtrain prepare` first.")
    if batch.loss_share < 1:
        share = f"{1 - batch.loss_share:.1%} of the tokens"
        notes.append(f"{share} have no loss (padding, prompts): computed, not in a log's tokens/s and MFU.")
    if pace is None:
        return [*notes, "No MFU: add --tokens-per-second, and --device where the peak is unknown."]
    speed, peak = format_quantity(round(pace.tokens_per_second)), f"{pace.peak_flops / 1e12:,.4g} TFLOP/s"
    return [*notes, f"MFU at {speed} tokens/s, those without loss too, of {pace.num_devices:.3g} x {peak}."]
