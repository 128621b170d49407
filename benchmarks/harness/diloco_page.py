"""The table and the plot of DiLoCo beside DDP."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

Curve = list[tuple[float, float, float]]  # tokens, bytes sent by a rank, bits per byte
COLOURS: Final = {0: "#0b0b0b", 10: "#2a78d6", 30: "#008300", 100: "#eb6834"}
DASHES: Final = {"fp32": "-", "bf16": "-", "int8": "--"}


class Kind(NamedTuple):
    """A way of training: `every_steps` 0 is DDP."""

    optimizer: str
    every_steps: int
    delta: str

    @property
    def label(self) -> str:
        """Return a few words."""
        return f"DiLoCo, H {self.every_steps}, {self.delta}" if self.every_steps else "DDP, fp32"


def page(found: Mapping[Kind, Sequence[Curve]], *, chart: str, hardware: str) -> str:
    """Return the page in markdown."""
    first = next(iter(found.values()))[0]
    lines = [
        "# DiLoCo beside DDP",
        "",
        "Written by `python benchmarks/questions/diloco.py`; nothing here is typed.",
        f"{hardware}; a plain Llama of width 64, 2 ranks on gloo, {first[-1][0]:,.0f} tokens a run in steps of 1,024.",
        "Outer SGD at rate 0.7 with Nesterov momentum 0.9, as published and not tuned here; the rates inside are those",
        "of `experiment=optimizer_race`. Bits per byte of held-out text are the global weights' at the end, means over",
        "seeds with their least and most. Bytes left one rank: counted for deltas, planned for gradients.",
        "",
        f"![bits per byte against tokens and against bytes sent]({chart})",
        "",
    ]
    for optimizer in dict.fromkeys(kind.optimizer for kind in found):
        lines += _table({kind: runs for kind, runs in found.items() if kind.optimizer == optimizer}, optimizer)
    return "\n".join(lines)


def _table(found: Mapping[Kind, Sequence[Curve]], optimizer: str) -> list[str]:
    ends = {kind: [run[-1][2] for run in runs] for kind, runs in found.items()}
    sent = {kind: statistics.fmean(run[-1][1] for run in runs) for kind, runs in found.items()}
    whole = next((kind for kind in found if not kind.every_steps), None)
    head = "| | seeds | bits per byte | beside DDP | sent by a rank | DDP's bytes over it |"
    rows = [f"## optimizer={optimizer}", "", head, "|---|---|---|---|---|---|"]
    for kind, values in ends.items():
        mean = statistics.fmean(values)
        beside = "" if whole in (None, kind) else f"{mean - statistics.fmean(ends[whole]):+.3f}"
        times = "" if whole in (None, kind) else f"{sent[whole] / sent[kind]:,.0f}"
        told = f"{mean:.3f}" + (f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else "")
        rows.append(f"| {kind.label} | {len(values)} | {told} | {beside} | {sent[kind] / 1e6:,.2f} MB | {times} |")
    return [*rows, ""]


def draw(found: Mapping[Kind, Sequence[Curve]], path: Path) -> None:
    """Draw mean curves of each optimizer: over tokens on the left, over bytes (in powers of ten) on the right."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    optimizers = list(dict.fromkeys(kind.optimizer for kind in found))
    figure, rows = pyplot.subplots(len(optimizers), 2, figsize=(10, 3.8 * len(optimizers)), squeeze=False)
    for row, optimizer in zip(rows, optimizers, strict=True):
        for kind, runs in found.items():
            if kind.optimizer == optimizer:
                middle = [tuple(statistics.fmean(values) for values in zip(*points, strict=True))
                          for points in zip(*runs, strict=True)]  # fmt: skip
                ink = {"color": COLOURS[kind.every_steps], "linestyle": DASHES[kind.delta], "label": kind.label}
                sent = [(num_bytes / 1e6, value) for _, num_bytes, value in middle if num_bytes]
                row[0].plot([tokens / 1e3 for tokens, *_ in middle], [value for *_, value in middle], **ink)
                row[1].plot([x for x, _ in sent], [y for _, y in sent], marker="o", markersize=2.5, **ink)
        row[0].set(title=f"optimizer={optimizer}", xlabel="thousand tokens", ylabel="bits per byte, held out")
        row[1].set(xscale="log", xlabel="MB sent by a rank")
        row[0].legend(frameon=False, fontsize=8, loc="upper right")
        for axes in row:
            axes.grid(color="#e1e0d9")
            axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
