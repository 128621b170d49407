"""`lmtrain calc`: the bytes of a tensor, and the FLOPs and the time of a matrix product on any device."""

import json
import math
import re
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.machine.hardware import DEVICES, MATMUL_DTYPES, MatmulDtype, find_devices
from lmtrain.accounting.machine.tensor_size import (
    BITS,
    FORMATS_OF_BITS,
    TensorSize,
    is_like_format,
    parse_shape,
    require_format,
)
from lmtrain.accounting.quantities import parse_quantity, parse_whole
from lmtrain.accounting.training_plan.products import (
    ProductDevice,
    Shape,
    as_measured,
    of_table,
    product_of,
    product_rows,
)
from lmtrain.errors import EXIT_DONE, ConfigurationError, did_you_mean, suggest
from lmtrain.report.plans.calc_page import matmul_page, tensor_page
from lmtrain.run.compose.help import HELP_FLAGS, shared_keys
from lmtrain.run.compose.paths import conf_folder
from lmtrain.tracking.measurements import read_measurements

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
KINDS: Final = ("tensor", "matmul")
KEYS: Final = {
    "tensor": ("shape", "dtype"),
    "matmul": ("dtype", "device", "m", "k", "n", "peak_flops", "memory_bytes_per_second"),
}
SYNONYMS: Final = {
    "mm": "matmul", "gemm": "matmul", "product": "matmul", "size": "tensor", "shape": "tensor", "precision": "dtype",
    "dims": "shape", "gpu": "device", "bandwidth": "memory_bytes_per_second", "peak": "peak_flops",
}  # fmt: skip
OWN: Final = ("peak_flops", "memory_bytes_per_second")  # of a device outside the table
SIGNS: Final = ("x", "@", "*")
_BRACKETS: Final = re.compile(r"[\[(]([^\])]*)[\])]")


def calc(words: list[str], *, program: str = "lmtrain calc") -> int:
    """Print a calculation; --json prints one object.

    Raises:
        ConfigurationError: No such calculation, an impossible value, or an unknown device.
    """
    if not words or HELP_FLAGS & set(words):
        print(USAGE.format(program=program), end="")
        return EXIT_DONE
    kind, *rest = words
    if kind not in KINDS:
        raise ConfigurationError(
            f"{program} {kind}: calculations are {' and '.join(KINDS)}.{_near(kind, KINDS)} A run's time and money: "
            "`lmtrain plan --help`."
        )
    places, settings = _sorted(kind, [word for word in rest if word != "--json"])
    found, page = (_tensor if kind == "tensor" else _matmul)(places, settings)
    print(json.dumps(found) if "--json" in rest else page())
    return EXIT_DONE


def _sorted(kind: str, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the shapes' words, and the settings by key; a format by itself, known or not, is a dtype."""
    places: list[str] = []
    settings: dict[str, str] = {}
    for word, after in zip(words, (*words[1:], ""), strict=False):
        key, equals, value = word.partition("=")
        if word.startswith("--"):
            typed = key.lstrip("-").replace("-", "_")
            meant = f"; write {typed}={value or after or 'VALUE'}" if typed in KEYS[kind] else ""
            raise ConfigurationError(f"{word}: --json is the only flag of {kind}, and settings have no dashes{meant}.")
        if not equals and is_like_format(word):
            key, value = "dtype", word
        elif not equals:
            places.append(word)
            continue
        if key not in KEYS[kind]:
            raise ConfigurationError(f"{word}: {kind} has {', '.join(KEYS[kind])}.{_near(key, KEYS[kind])}")
        if key in settings:
            raise ConfigurationError(f"{word}: {key}={settings[key]} is given already; leave one out.")
        settings[key] = value
    return places, settings


def _near(word: str, names: tuple[str, ...]) -> str:
    return did_you_mean([SYNONYMS[word]]) if SYNONYMS.get(word) in names else suggest(word, names)


def _tensor(places: list[str], settings: Mapping[str, str]) -> tuple[dict[str, Any], Callable[[], str]]:
    if "shape" in settings and places:
        raise ConfigurationError(f"shape={settings['shape']} and {' '.join(places)} are two shapes; leave one out.")
    places = places or [settings[key] for key in ("shape",) if key in settings]
    if not places:
        raise ConfigurationError("a tensor needs its shape, as in `lmtrain calc tensor 4096x4096 bf16`.")
    shape = parse_shape(" ".join(places))
    name = require_format(settings["dtype"], BITS) if "dtype" in settings else None
    names = {BITS[name]: (name,)} if name else FORMATS_OF_BITS
    sizes = {named: TensorSize(shape=shape, bits=bits) for bits, named in names.items()}
    found = {
        "shape": shape,
        "num_values": math.prod(shape),
        "bytes": {name: size.num_bytes for named, size in sizes.items() for name in named},
    }
    return found, lambda: tensor_page(shape, sizes)


def _matmul(places: list[str], settings: Mapping[str, str]) -> tuple[dict[str, Any], Callable[[], str]]:
    left, right = _operands(places, settings)
    product = product_of(left, right)
    dtypes = _dtypes(settings)
    rows = list(product_rows(product, _devices(settings), dtypes))
    if not rows:
        raise ConfigurationError(
            f"dtype={dtypes[0]}: there is no peak of device={settings.get('device')} for it; leave dtype out for those "
            "that there are, or set peak_flops and memory_bytes_per_second."
        )
    found = {"left": left, "right": right, "flops": product.flops, "rows": [row.to_json() for row in rows]}
    return found, lambda: matmul_page(left, right, product, rows)


def _operands(places: list[str], settings: Mapping[str, str]) -> tuple[Shape, Shape]:
    """Return both shapes: of M K N, of two shapes, a vector among them, or of m=, k= and n=."""
    named = [parse_whole(settings[key], key) for key in "mkn" if key in settings]
    shapes = [parse_shape(text) for text in _BRACKETS.findall(" ".join(places))]
    shapes = shapes or [parse_shape(word) for word in places if word not in SIGNS]
    if len(shapes) == 2 and not named and max(map(len, shapes)) > 1:
        left, right = shapes
        return (left if len(left) > 1 else (1, *left)), (right if len(right) > 1 else (*right, 1))
    numbers = [*named, *(number for shape in shapes for number in shape)]
    if len(numbers) != 3 or (named and shapes):
        given = " ".join([*places, *(f"{key}={settings[key]}" for key in "mkn" if key in settings)])
        raise ConfigurationError(
            f"a product needs m, k and n, as in `lmtrain calc matmul 4096 4096 16384`, or two shapes, as in `lmtrain "
            f"calc matmul 8,2048,4096 4096,16384`; given: {given or 'none'}."
        )
    m, k, n = numbers
    return (m, k), (k, n)


def _dtypes(settings: Mapping[str, str]) -> tuple[MatmulDtype, ...]:
    """Return the typed format; else bf16 on many devices, all on those that were."""
    if "dtype" in settings:
        name = require_format(settings["dtype"], MATMUL_DTYPES)
        return tuple(dtype for dtype in MATMUL_DTYPES if dtype == name)
    return MATMUL_DTYPES if "device" in settings else ("bf16",)


def _devices(settings: Mapping[str, str]) -> list[ProductDevice]:
    """Return the typed devices, each followed by its measurement on this machine, or all."""
    if settings.keys() & set(OWN):
        return [_own_device(settings)]
    measured = _measured()
    asked = settings.get("device")
    if asked and asked.lower() == "cpu":
        if found := [device for device in measured if device.name not in DEVICES]:
            return found
        raise ConfigurationError("device=cpu is not measured here; nearest: run `lmtrain doctor`, which measures it.")
    known = find_devices(asked) if asked else tuple(DEVICES.values())
    with_measured = [[of_table(device), *(each for each in measured if each.name == device.name)] for device in known]
    others = [] if asked else [each for each in measured if each.name not in DEVICES]
    return [*chain.from_iterable(with_measured), *others]


def _own_device(settings: Mapping[str, str]) -> ProductDevice:
    missing = [key for key in OWN if key not in settings]
    if missing:
        raise ConfigurationError(f"{OWN[0]} and {OWN[1]} belong together; {missing[0]} is missing.")
    peak, rate = (_above_zero(key, settings[key]) for key in OWN)
    dtypes = _dtypes(settings) if "dtype" in settings else MATMUL_DTYPES[:1]
    peaks = {str(dtype): peak for dtype in dtypes}
    return ProductDevice(name=settings.get("device", "your device"), peaks=peaks, bytes_per_second=rate)


def _above_zero(key: str, value: str) -> float:
    number = parse_quantity(value, key)
    if number <= 0:
        raise ConfigurationError(f"{key}={value} is not above 0.")
    return number


def _measured() -> list[ProductDevice]:
    """Return the devices measured here by `lmtrain doctor`."""
    cache = shared_keys(conf_folder() / "train.yaml")["run.cache"]
    found = (as_measured(device) for device in read_measurements(Path(cache)).devices)
    return [device for device in found if device]
