"""The ceilings as a page of tables."""

from collections.abc import Callable
from typing import Any, Final

from benchmarks.harness.hopper.rows import Row

TOY: Final = "**A toy: narrow models, here only to show that every part runs. No figure of it says anything.**"


def page(report: dict[str, Any], *, command: str) -> str:
    """Return the page: what it was measured on, and a table for each part."""
    versions = ", ".join(
        f"{name} {report[name]}" for name in ("torch", "cuda", "driver", "date") if report.get(name) is not None
    )
    parts = [
        f"# Ceilings: {report['device']}",
        f"`{command.strip()}`. {versions}. Shares are of the data sheet's dense peak.",
        *([TOY] if report["is_toy"] else []),
        *(f"## {name.capitalize()}\n\n{TABLES[name](rows)}" for name, rows in report["parts"].items()),
    ]
    return "\n\n".join(parts) + "\n"


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *lines])


def _rate(row: Row, scale: float, *, digits: int = 0) -> list[str]:
    if "not_measured" in row:
        return [f"not measured: {row['not_measured']}".replace("|", "/"), "", ""]
    share = "" if row["of_peak"] is None else f"{row['of_peak']:.1%}"
    return [f"{1e6 * row['seconds']:,.1f}", f"{row['per_second'] / scale:,.{digits}f}", share]


def _copies(rows: list[Row]) -> str:
    return table(["copy", "µs", "GB/s", "of peak"], [[row["copy"], *_rate(row, 1e9, digits=1)] for row in rows])


def _products(rows: list[Row]) -> str:
    heads = ["model", "layer", "times", "M", "K", "N", "product", "format", "µs", "TFLOP/s", "of peak"]
    lines = [
        [
            *(str(row[name]) for name in ("model", "name", "count", "num_rows", "num_inputs", "num_outputs")),
            row["product"], row["dtype"], *_rate(row, 1e12, digits=1),
        ]
        for row in rows
    ]  # fmt: skip
    return table(heads, lines)


def _attention(rows: list[Row]) -> str:
    heads = ["model", "shape B, H/Hkv, T, K, window", "kernel", "forward µs", "TFLOP/s", "of peak"]
    lines: list[list[str]] = []
    for row in rows:
        shape = f"{row['num_sequences']}, {row['num_heads']}/{row['num_kv_heads']}, {row['num_tokens']}, "
        shape += f"{row['head_width']}, {row['window_tokens'] or 'none'}"
        way = [row, row] if "not_measured" in row else [row["forward"], row["backward"]]
        cells = [*_rate(way[0], 1e12, digits=1), *(_rate(way[1], 1e12, digits=1) if way[1] is not row else [""] * 3)]
        lines.append([row["model"], shape, row["kernel"], *cells])
    return table([*heads, "backward µs", "TFLOP/s", "of peak"], lines)


def _losses(rows: list[Row]) -> str:
    lines: list[list[str]] = []
    for row in rows:
        if "not_measured" in row:
            cells = [f"not measured: {row['not_measured']}".replace("|", "/"), ""]
        else:
            peak = row["peak_bytes"]
            cells = [f"{1e3 * row['seconds']:,.2f}", "not measured" if peak is None else f"{peak / 2**20:,.0f}"]
        lines.append([row["model"], f"{row['num_tokens']} x {row['vocab_size']}", row["loss"], *cells])
    return table(["model", "tokens x words", "loss", "ms", "peak MiB"], lines)


def _optimizer(rows: list[Row]) -> str:
    lines = [[row["model"], f"{row['num_parameters']:,}", row["step"], *_rate(row, 1e9, digits=1)] for row in rows]
    return table(["model", "parameters", "step", "µs", "GB/s of 28 bytes a parameter", "of peak"], lines)


TABLES: Final[dict[str, Callable[[list[Row]], str]]] = {
    "copies": _copies,
    "products": _products,
    "attention": _attention,
    "losses": _losses,
    "optimizer": _optimizer,
}
