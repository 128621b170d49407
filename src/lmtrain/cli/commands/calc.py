"""`lmtrain calc`: the bytes of a tensor, and the FLOPs and the time of a matrix product on any device."""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.machine.hardware import DEVICES, MATMUL_DTYPES, MatmulDtype, find_devices
from lmtrain.accounting.machine.number_formats import (
    BITS,
    FORMATS_OF_BITS,
    TensorSize,
    find_format,
    parse_shape,
    require_format,
)
from lmtrain.accounting.quantities import parse_quantity, parse_whole
from lmtrain.accounting.training_plan.roofline import (
    ProductDevice,
    Shape,
    as_measured,
    of_table,
    product_of,
    product_rows,
)
from lmtrain.cli.help import HELP_FLAGS
from lmtrain.errors import EXIT_DONE, ConfigurationError, suggest
from lmtrain.report.plans.calc_page import matmul_page, tensor_page
from lmtrain.run.compose.option_files import shared_keys
from lmtrain.run.compose.paths import conf_folder
from lmtrain.tracking.machine import read_measurements

USAGE: Final = """\
{program}: bytes of a tensor; FLOPs, bytes and time of a matrix product.

  {program} tensor SHAPE [DTYPE]
  {program} tensor 32,8192,128256 bf16     no DTYPE: every size of a value

  {program} matmul M K N [DTYPE]           [M, K] x [K, N]
  {program} matmul 4096 4096 16384         on every device known, in bf16
  {program} matmul 4096 4096 16384 device=h100 dtype=fp8
  {program} matmul 8,2048,4096 4096,16384  two shapes, also of many products
  {program} matmul m=1 k=4096 n=128256

  device=NAME        a product's exact name, or words of it; cpu: this machine's
  dtype=NAME         bf16, fp16, tf32, fp32 or fp8; a tensor's also others
  peak_flops=100T memory_bytes_per_second=1TB
                     a device of yours: its dense peak in FLOP/s, its memory's
                     bandwidth
  --json             one object

Amounts: 4K is 4000, 4Ki is 4096. A device that `lmtrain doctor` measured here
has a row of its measurements too. Time, devices, dollars, FLOPs, tokens and
parameters of a run: `lmtrain plan --help`.
"""
KEYS: Final = {
    "tensor": ("shape", "dtype"),
    "matmul": ("dtype", "device", "m", "k", "n", "peak_flops", "memory_bytes_per_second"),
}
OWN: Final = ("peak_flops", "memory_bytes_per_second")  # of a device outside the table
SIGNS: Final = ("x", "@", "*")
BRACKETS: Final = re.compile(r"[\[(]([^\])]*)[\])]")


def calc(words: list[str], *, program: str = "lmtrain calc") -> int:
    """Print a calculation; --json prints one object.

    Raises:
        ConfigurationError: No such calculation, an impossible value, or an unknown device.
    """
    if not words or HELP_FLAGS & set(words):
        print(USAGE.format(program=program), end="")
        return EXIT_DONE
    kind, *rest = words
    if kind not in KEYS:
        raise ConfigurationError(f"{program} {kind}: must be one of {', '.join(KEYS)}.{suggest(kind, KEYS)}")
    shapes, settings = _sorted(kind, [word for word in rest if word != "--json"])
    found, page = (_tensor if kind == "tensor" else _matmul)(shapes, settings)
    print(json.dumps(found) if "--json" in rest else page())
    return EXIT_DONE


def _sorted(kind: str, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the shapes, and the settings by key; a format without a key is the dtype."""
    shapes: list[str] = []
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and find_format(word):
            key, value = "dtype", word
        elif not equals and not word.startswith("--"):
            shapes.append(word)
            continue
        if key not in KEYS[kind]:
            raise ConfigurationError(
                f"{word}: {kind} has the settings {', '.join(KEYS[kind])} and the flag --json."
                f"{suggest(key.lstrip('-'), KEYS[kind])}"
            )
        if key in settings:
            raise ConfigurationError(f"{word}: {key} is given twice; leave one out.")
        settings[key] = value
    return shapes, settings


def _tensor(shapes: list[str], settings: Mapping[str, str]) -> tuple[dict[str, Any], Callable[[], str]]:
    typed = [*shapes, *(settings[key] for key in ("shape",) if key in settings)]
    shape = parse_shape(" ".join(typed))
    name = require_format(settings["dtype"], BITS) if "dtype" in settings else None
    names = {BITS[name]: (name,)} if name else FORMATS_OF_BITS
    sizes = {named: TensorSize(shape=shape, bits=bits) for bits, named in names.items()}
    found = {
        "shape": shape,
        "num_values": math.prod(shape),
        "bytes": {name: size.num_bytes for named, size in sizes.items() for name in named},
    }
    return found, lambda: tensor_page(shape, sizes)


def _matmul(shapes: list[str], settings: Mapping[str, str]) -> tuple[dict[str, Any], Callable[[], str]]:
    left, right = _operands(shapes, settings)
    product, dtypes = product_of(left, right), _dtypes(settings)
    rows = list(product_rows(product, _devices(settings), dtypes))
    if not rows:
        raise ConfigurationError(
            f"dtype={dtypes[0]}: device={settings.get('device')} has no such peak; leave dtype out."
        )
    found = {"left": left, "right": right, "flops": product.flops, "rows": [row.to_json() for row in rows]}
    return found, lambda: matmul_page(left, right, product, rows)


def _operands(typed: list[str], settings: Mapping[str, str]) -> tuple[Shape, Shape]:
    """Return both shapes: of M K N, of two shapes, a vector among them, or of m=, k= and n=."""
    named = [parse_whole(settings[key], key) for key in "mkn" if key in settings]
    bracketed = BRACKETS.findall(" ".join(typed))
    shapes = [parse_shape(text) for text in bracketed or typed if text not in SIGNS]
    if len(shapes) == 2 and not named and max(map(len, shapes)) > 1:
        left, right = shapes
        return (left if len(left) > 1 else (1, *left)), (right if len(right) > 1 else (*right, 1))
    numbers = [*named, *(number for shape in shapes for number in shape)]
    if len(numbers) != 3 or (named and shapes):
        raise ConfigurationError(
            "matmul needs m, k and n, as in `lmtrain calc matmul 4096 4096 16384`, or two shapes, as in `lmtrain calc "
            f"matmul 8,2048,4096 4096,16384`; got {' '.join(typed) or 'nothing'}."
        )
    m, k, n = numbers
    return (m, k), (k, n)


def _dtypes(settings: Mapping[str, str]) -> tuple[MatmulDtype, ...]:
    """Return the typed format; else all formats of a typed device, and bf16 on the others."""
    if "dtype" in settings:
        name = require_format(settings["dtype"], MATMUL_DTYPES)
        return tuple(dtype for dtype in MATMUL_DTYPES if dtype == name)
    return MATMUL_DTYPES if "device" in settings else ("bf16",)


def _devices(settings: Mapping[str, str]) -> list[ProductDevice]:
    """Return the typed devices, each followed by its measurement on this machine, or all."""
    if settings.keys() & set(OWN):
        return [_own_device(settings)]
    cache = shared_keys(conf_folder() / "train.yaml")["run.cache"]
    measured = [each for one in read_measurements(Path(cache)).devices if (each := as_measured(one))]
    others, asked = [each for each in measured if each.name not in DEVICES], settings.get("device")
    if asked and asked.lower() == "cpu":
        if not others:
            raise ConfigurationError("device=cpu is not measured on this machine; run `lmtrain doctor` first.")
        return others
    known = find_devices(asked) if asked else tuple(DEVICES.values())
    found = [each for one in known for each in (of_table(one), *(two for two in measured if two.name == one.name))]
    return found if asked else [*found, *others]


def _own_device(settings: Mapping[str, str]) -> ProductDevice:
    if missing := [key for key in OWN if key not in settings]:
        raise ConfigurationError(f"{missing[0]} is missing; set it together with {OWN[0]} and {OWN[1]}.")
    peak, rate = (parse_quantity(settings[key], key) for key in OWN)
    if min(peak, rate) <= 0:
        raise ConfigurationError(f"{OWN[0]} and {OWN[1]} must be above 0.")
    dtypes = _dtypes(settings) if "dtype" in settings else MATMUL_DTYPES[:1]
    peaks = {str(dtype): peak for dtype in dtypes}
    return ProductDevice(name=settings.get("device", "your device"), peaks=peaks, bytes_per_second=rate)
