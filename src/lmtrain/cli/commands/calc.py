"""`lmtrain calc`: the bytes of a tensor, and the FLOPs and the time of a matrix product on any device."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from lmtrain.accounting.machine.hardware import DEVICES, MATMUL_DTYPES, find_devices
from lmtrain.accounting.machine.number_formats import BITS, find_format, parse_shape, require_format
from lmtrain.accounting.training_plan.roofline import MatrixProduct, Shape, product_of, product_times
from lmtrain.cli.help import HELP_FLAGS
from lmtrain.errors import EXIT_DONE, ConfigurationError, suggest
from lmtrain.json_output import print_json
from lmtrain.report.show import columns, show

USAGE: Final = """\
{program}: bytes of a tensor; FLOPs, bytes and time of a matrix product.

  {program} tensor SHAPE [DTYPE]
  {program} tensor 32,8192,128256 bf16     no DTYPE: every format
  {program} matmul M K N [DTYPE]           [M, K] x [K, N]
  {program} matmul 4096 4096 16384         on every device known, in bf16
  {program} matmul 4096 4096 16384 device=h100 dtype=fp8
  {program} matmul 8,2048,4096 4096,16384  two shapes, also of many products

  device=NAME        a product's exact name, or words of it
  dtype=NAME         bf16, fp16, tf32, fp32 or fp8; a tensor's also others
  --json             one object

Amounts: 4K is 4000, 4Ki is 4096. Time, devices, dollars, FLOPs, tokens and
parameters of a run: `lmtrain plan --help`.
"""
KEYS: Final = {"tensor": ("dtype",), "matmul": ("dtype", "device")}
TIMES: Final = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


def calc(words: list[str], *, program: str = "lmtrain calc") -> int:
    """Print a calculation; --json prints one object."""
    if not words or HELP_FLAGS & set(words):
        print(USAGE.format(program=program), end="")
        return EXIT_DONE
    kind, *rest = words
    if kind not in KEYS:
        raise ConfigurationError(f"{program} {kind}: must be one of {', '.join(KEYS)}.{suggest(kind, KEYS)}")
    shapes: list[str] = []
    settings: dict[str, str] = {}
    for word in rest:
        key, equals, value = word.partition("=") if "=" in word or not find_format(word) else ("dtype", "=", word)
        if equals and key not in KEYS[kind]:
            raise ConfigurationError(f"{word}: {kind} takes {', '.join(KEYS[kind])}.{suggest(key, KEYS[kind])}")
        if equals:
            settings[key] = value
        elif word != "--json":
            shapes.append(word)
    found, page = (_tensor if kind == "tensor" else _matmul)(shapes, settings)
    print_json(found) if "--json" in rest else show(page)
    return EXIT_DONE


def _tensor(shapes: list[str], settings: dict[str, str]) -> tuple[dict[str, Any], RenderableType]:
    shape = parse_shape(" ".join(shapes))
    names = [require_format(settings["dtype"], [*BITS])] if "dtype" in settings else [*BITS]
    num_values = math.prod(shape)
    sizes = {name: -(-num_values * BITS[name] // 8) for name in names}
    rows = [[name, f"{size:,}", f"{size / 1e9:,.3f}", f"{size / 2**30:,.3f}"] for name, size in sizes.items()]
    note = "GB are 1e9 bytes, GiB 2^30. Values of four bits are packed in pairs, without their scales."
    table = columns(rows, head=("", "bytes", "GB", "GiB"))
    page = Group(Text(f"{list(shape)}: {num_values:,} values\n"), table, Text(f"\n{note}"))
    return {"shape": shape, "num_values": num_values, "bytes": sizes}, page


def _matmul(shapes: list[str], settings: dict[str, str]) -> tuple[dict[str, Any], RenderableType]:
    left, right = _operands(shapes)
    product = product_of(left, right)
    devices = find_devices(settings["device"]) if "device" in settings else [*DEVICES.values()]
    dtypes = [require_format(settings["dtype"], MATMUL_DTYPES)] if "dtype" in settings else ["bf16"]
    rows = [*product_times(product, devices, [one for one in MATMUL_DTYPES if one in dtypes])]
    if not rows:
        raise ConfigurationError(f"dtype={dtypes[0]}: device={settings.get('device')} has no such peak.")
    found = {"left": left, "right": right, "flops": product.flops, "rows": rows}
    return found, _matmul_page(left, right, product, rows)


def _operands(typed: list[str]) -> tuple[Shape, Shape]:
    """Return both shapes: of M K N, or of two shapes, a vector among them."""
    shapes = [parse_shape(text) for text in typed]
    if len(shapes) == 2 and max(map(len, shapes)) > 1:
        left, right = shapes
        return (left if len(left) > 1 else (1, *left)), (right if len(right) > 1 else (*right, 1))
    numbers = [number for shape in shapes for number in shape]
    if len(numbers) != 3:
        raise ConfigurationError(
            "matmul needs M K N, as in `lmtrain calc matmul 4096 4096 16384`, or two shapes, as in `lmtrain calc "
            f"matmul 8,2048,4096 4096,16384`; got {' '.join(typed) or 'nothing'}."
        )
    m, k, n = numbers
    return (m, k), (k, n)


def _matmul_page(
    left: Shape, right: Shape, product: MatrixProduct, rows: Sequence[Mapping[str, Any]]
) -> RenderableType:
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
