"""A tensor's bytes and a matrix product's time as text of 80 columns, each with its formula."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Final

from lmtrain.accounting.machine.number_formats import TensorSize
from lmtrain.accounting.training_plan.roofline import TILE, MatrixProduct, ProductRow, Shape

COLUMNS: Final = 80
LONGEST_NAME: Final = 24  # of a device; a longer one has a line of its own
DECIMAL: Final = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))
BINARY: Final = (("Pi", 2**50), ("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))
TIMES: Final = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
KERNEL_SECONDS: Final = 1e-5  # starting a kernel counts below this


def tensor_page(shape: Shape, sizes: Mapping[tuple[str, ...], TensorSize]) -> str:
    """Return a row for each size of a value."""
    most = max(size.num_bytes for size in sizes.values())
    decimals = 6 if most < 2**30 else 3 if most < 1e13 else 0
    rows = [
        [
            ", ".join(names),
            f"{size.bits / 8:g}",
            f"{size.num_bytes:,}",
            *(f"{size.num_bytes / unit:,.{decimals}f}" for unit in (1e9, 2**30)),
        ]
        for names, size in sizes.items()
    ]
    (number,) = {size.num_values for size in sizes.values()}
    return "\n".join(
        [
            f"{_brackets(shape)}: {number:,} values",
            "",
            *_table(["", "each", "bytes", "GB", "GiB"], rows),
            "",
            "bytes = values x the bytes of each; GB are 1e9 bytes, GiB 2^30 (as torch and",
            "nvidia-smi count). Four-bit values are packed in pairs, without their scales.",
        ]
    )


def matmul_page(left: Shape, right: Shape, product: MatrixProduct, rows: Sequence[ProductRow]) -> str:
    """Return the product's FLOPs and bytes, then a row for each device and format."""
    m, k, n, count = product.num_rows, product.num_inner, product.num_columns, product.num_products
    times = "" if count == 1 else f"{count:,} x "
    return "\n".join(
        [
            f"{_brackets(left)} x {_brackets(right)} -> {_brackets((*left[:-1], right[-1]))}",
            "",
            f"  FLOPs  {_amount(product.flops)}FLOP = {times}2 x {m:,} x {k:,} x {n:,}",
            *_moved(rows),
            "",
            *_by_device(rows),
            "",
            *_notes(rows),
        ]
    )


def _moved(rows: Sequence[ProductRow]) -> list[str]:
    """Return the bytes of each format, formats of as many bytes together."""
    formats: dict[int, list[str]] = {}
    for row in rows:
        formats.setdefault(row.num_bytes, []).append(row.dtype)
    lines = [
        f"{_amount(num)}B, {_amount(num, BINARY)}B in {', '.join(dict.fromkeys(names))}"
        for num, names in formats.items()
    ]
    return [f"  {'' if index else 'bytes':<6} {line}" for index, line in enumerate(lines)]


def _by_device(rows: Sequence[ProductRow]) -> list[str]:
    """Return a table: a row for each device, or below each device a row for each of several formats."""
    is_one_format = len({row.dtype for row in rows}) == 1
    head = ["", "TFLOP/s", "FLOP/byte", "balance", "time", "bound by", "tiles"]
    cells: list[list[str]] = []
    shown = None
    for row in rows:
        if not is_one_format and row.device != shown:
            cells.append([_short(row.device)])
        name = "  measured here" if row.is_measured and row.device == shown else _short(row.device)
        if is_one_format and len(name) > LONGEST_NAME:
            cells.append([name])
            name = ""
        cells.append([name if is_one_format else f"  {row.dtype}{' measured here' * row.is_measured}", *_cells(row)])
        shown = row.device
    return _table(head, cells)


def _short(device: str) -> str:
    """Return a device's name as it fits the column."""
    return device.removesuffix(" Generation")


def _cells(row: ProductRow) -> list[str]:
    is_slow = row.time.is_bound_by_memory
    tiles = "-" if row.tile_use is None or is_slow else f"{row.tile_use:.0%}"
    return [
        _number(row.peak_flops / 1e12),
        _number(row.intensity),
        _number(row.balance),
        _time(row.time.seconds),
        "memory" if is_slow else "compute",
        tiles,
    ]


def _notes(rows: Sequence[ProductRow]) -> list[str]:
    lines = [
        "time: at best, the longer of FLOPs / peak and bytes / bandwidth, each matrix moved once in its format "
        "(roofline, CACM 52(4), 2009). Peaks are dense. balance: the FLOP/byte from which on computing takes longer.",
    ]
    if any(row.tile_use is not None and not row.time.is_bound_by_memory for row in rows):
        lines.append(
            f"tiles: share of computing that counts, in whole tiles of {TILE[0]} x {TILE[1]} and whole waves of them "
            "over the multiprocessors (NVIDIA, Matrix Multiplication Background). The time in such tiles is over this "
            "share."
        )
    if any(row.time.seconds < KERNEL_SECONDS for row in rows):
        lines.append("Starting a kernel takes some microseconds more, which are not counted.")
    if any(row.is_measured for row in rows):
        lines.append("measured: by `lmtrain doctor` on this machine, the peak and the bandwidth.")
    return [fill(line, COLUMNS) for line in lines]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines: the first column at the left, numbers at the right; a short row is a heading."""
    whole = [head, *(row for row in rows if len(row) == len(head))]
    widths = [max(len(row[column]) for row in whole) for column in range(len(head))]
    lines = (
        [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] if len(row) == len(head) else row
        for row in (head, *rows)
    )
    return ["  ".join(line).rstrip() for line in lines]


def _brackets(shape: Shape) -> str:
    return f"[{', '.join(f'{number}' for number in shape)}]"


def _amount(number: float, prefixes: Sequence[tuple[str, float]] = DECIMAL) -> str:
    """Write a number with a prefix, below the smallest of them exactly: "34.36 G", "65,536 "."""
    prefix, size = next((each for each in prefixes if number >= each[1]), ("", 1))
    return f"{_number(number / size)} {prefix}" if prefix else f"{number:,} "


def _number(number: float, *, digits: int = 4) -> str:
    """Write a number in `digits` digits, large ones whole."""
    return f"{number:,.0f}" if number >= 10**digits else f"{number:,.{digits}g}"


def _time(seconds: float) -> str:
    if seconds < TIMES[-1][1]:
        return f"< 1 {TIMES[-1][0]}"
    unit, size = next((each for each in TIMES if seconds >= each[1] * 0.9995), TIMES[-1])
    return f"{_number(seconds / size, digits=3)} {unit}"
