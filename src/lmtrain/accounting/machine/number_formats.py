"""Number formats: the bytes of a value by role, and the size of a tensor.

GB are 1e9 bytes, as of disks, networks and data sheets; GiB are 2^30, as of torch and nvidia-smi.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.quantities import parse_whole
from lmtrain.errors import ConfigurationError, suggest


def utilization_format(matmul: MatmulDtype) -> MatmulDtype:
    """Return the format whose peak divides a utilization: bf16 for fp8, which only some products use."""
    return "bf16" if matmul == "fp8" else matmul


@dataclass(frozen=True, kw_only=True)
class PrecisionBytes:
    """Bytes of one value by role, those of fp32 by default, and the format of the matrix products.

    `weights` are updated by the optimizer; `compute_copy` is of weights kept next to them for the products, where no
    sharding casts them as it gathers them.
    """

    weights: int = 4
    compute_copy: int = 0
    gradients: int = 4
    state: int = 4
    activations: int = 4
    matmul: MatmulDtype


# Bits of a stored value; those of four are packed in pairs, without their scales.
BITS: Final = {
    "fp64": 64, "int64": 64, "fp32": 32, "tf32": 32, "int32": 32, "bf16": 16, "fp16": 16, "int16": 16, "uint16": 16,
    "fp8": 8, "int8": 8, "uint8": 8, "bool": 8, "fp4": 4, "int4": 4,
}  # fmt: skip
SYNONYMS: Final = {  # of torch and of papers
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8": "fp8",
    "e4m3": "fp8", "e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "float64": "fp64", "double": "fp64",
    "long": "int64", "int": "int32", "short": "int16", "nvfp4": "fp4", "mxfp4": "fp4",
}  # fmt: skip
MOST_VALUES: Final = 10**24
SHAPES: Final = "4096x4096, 32,8192,128256 or 4Ki"
_BETWEEN: Final = re.compile(r"[x\u00d7*,;\s]+", re.IGNORECASE)


def find_format(word: str) -> str | None:
    """Return the format of our name or torch's, in any case; None for any other word."""
    name = word.lower().removeprefix("torch.")
    return SYNONYMS.get(name, name if name in BITS else None)


def require_format(word: str, names: Sequence[str]) -> str:
    """Return the name of a format, which must be among `names`."""
    if (name := find_format(word)) in names:
        return str(name)
    raise ConfigurationError(f"dtype must be one of {', '.join(names)}, got {word}.{suggest(word, names)}")


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the dimensions of a typed shape: 4096x4096, "32, 8192", [4096,4096], 4Ki.

    Raises: ConfigurationError for none, for one that is not a whole number of at least 1, and for too many values.
    """
    parts = _BETWEEN.split(text.strip().strip("[]()").strip())
    if parts and not parts[-1]:
        parts.pop()  # a comma may end a tuple
    try:
        shape = tuple(parse_whole(part, "dimension") for part in parts)
    except ConfigurationError as problem:
        raise ConfigurationError(f"shape must be whole numbers, as {SHAPES}, got {text}.") from problem
    if not shape or math.prod(shape) > MOST_VALUES:
        raise ConfigurationError(f"shape must have 1 to {MOST_VALUES:.0e} values, as {SHAPES}, got {text!r}.")
    return shape
