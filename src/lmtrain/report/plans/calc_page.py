"""A tensor's bytes and a matrix product's time as text."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from lmtrain.accounting.training_plan.roofline import MatrixProduct, Shape
from lmtrain.report.show import columns

TIMES: Final = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


def tensor_page(shape: Shape, num_values: int, sizes: Mapping[str, int]) -> RenderableType:
    """Return a row for each format; `sizes` are bytes by format."""
    rows = [[name, f"{size:,}", f"{size / 1e9:,.3f}", f"{size / 2**30:,.3f}"] for name, size in sizes.items()]
    note = "GB are 1e9 bytes, GiB 2^30. Values of four bits are packed in pairs, without their scales."
    table = columns(rows, head=("", "bytes", "GB", "GiB"))
    return Group(Text(f"{list(shape)}: {num_values:,} values\n"), table, Text(f"\n{note}"))


def matmul_page(left: Shape, right: Shape, product: MatrixProduct, rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the product's FLOPs, then a row for each device and format."""
    m, k, n, count = product.num_rows, product.num_inner, product.num_columns, product.num_products
    times = "" if count == 1 else f"{count:,} x "
    cells = [
        [
            row["device"],
            row["dtype"],
            f"{row['num_bytes'] / 1e9:,.4g}",
            f"{row['peak_flops'] / 1e12:,.4g}",
            f"{row['intensity']:,.4g}",
            _time(row["seconds"]),
            "memory" if row["is_bound_by_memory"] else "compute",
        ]
        for row in rows
    ]
    head = ("", "dtype", "GB", "TFLOP/s", "FLOP/byte", "time", "bound by")
    return Group(
        Text(f"{list(left)} x {list(right)} -> {[*left[:-1], right[-1]]}"),
        Text(f"{product.flops:.4g} FLOPs = {times}2 x {m:,} x {k:,} x {n:,}\n"),
        columns(cells, head=head),
        Text("\ntime: at best, the longer of FLOPs / peak and bytes / bandwidth (the roofline)."),
        Text("Peaks are dense."),
    )


def _time(seconds: float) -> str:
    unit, size = next((each for each in TIMES if seconds >= each[1]), TIMES[-1])
    return f"{seconds / size:.3g} {unit}"
