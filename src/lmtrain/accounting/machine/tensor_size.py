"""The size of a tensor: its values, and their bytes in each format of storage.

GB are 1e9 bytes, as of disks, networks and data sheets; GiB are 2^30, as of torch and nvidia-smi.
"""

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.quantities import parse_whole
from lmtrain.errors import ConfigurationError, did_you_mean

# The formats of a value by its bits in memory; those of four are packed in pairs, their scales not counted.
FORMATS_OF_BITS: Final[dict[int, tuple[str, ...]]] = {
    64: ("fp64", "int64"),
    32: ("fp32", "tf32", "int32"),
    16: ("bf16", "fp16", "int16", "uint16"),
    8: ("fp8", "int8", "uint8", "bool"),
    4: ("fp4", "int4"),
}
BITS: Final = {name: bits for bits, names in FORMATS_OF_BITS.items() for name in names}
# The names of torch and of papers
SYNONYMS: Final = {
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8": "fp8",
    "e4m3": "fp8", "e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "float64": "fp64", "double": "fp64",
    "long": "int64", "int": "int32", "short": "int16", "nvfp4": "fp4", "mxfp4": "fp4",
}  # fmt: skip
MOST_VALUES: Final = 10**24
EXAMPLES: Final = "4096x4096, 32,8192,128256 or 4Ki"
# A format's name, whether there is one: int3, nf4, complex64, torch.qint8
_LIKE_A_FORMAT: Final = re.compile(
    r"(torch\.)?(q?u?int|[bt]f|n?v?fp?|mx|b?float|complex|bool|e\d)\w*\d\w*", re.IGNORECASE
)
_APART: Final = re.compile(r"[x\u00d7*,;\s]+", re.IGNORECASE)
_GAP: Final = re.compile(r"^[x*,]|[x*]$|[x*,]\s*[x*,]")  # a comma may end a tuple


@dataclass(frozen=True, kw_only=True)
class TensorSize:
    """A tensor's dimensions and the bits of each of its values."""

    shape: tuple[int, ...]
    bits: int

    @property
    def num_values(self) -> int:
        """Return the product of the dimensions."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return the bytes, the last one whole."""
        return -(-self.num_values * self.bits // 8)


def find_format(word: str) -> str | None:
    """Return the format of a word, by our name or torch's, in any case; None where it names none."""
    name = word.lower().removeprefix("torch.")
    return SYNONYMS.get(name, name if name in BITS else None)


def is_like_format(word: str) -> bool:
    """Tell whether a word is a format, or written as one."""
    return find_format(word) is not None or _LIKE_A_FORMAT.fullmatch(word) is not None


def require_format(word: str, names: Iterable[str]) -> str:
    """Return the name of a format among `names`.

    Raises: ConfigurationError with the nearest.
    """
    names = tuple(names)
    if (name := find_format(word)) in names:
        return str(name)
    (near,) = difflib.get_close_matches(word.lower(), [*names, *SYNONYMS], n=1) or [""]
    near = SYNONYMS.get(near, near)
    raise ConfigurationError(
        f"dtype={word} is not one of {', '.join(names)}.{did_you_mean([near] if near in names else [])}"
    )


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the dimensions in a person's text: 4096x4096, "32, 8192", [4096,4096], 4Ki.

    Raises: ConfigurationError for none, or for one other than a whole number of at least 1.
    """
    inside = text.strip().strip("[]()").strip()
    parts = [part for part in _APART.split(inside) if part]
    if parts and _GAP.search(inside):
        raise ConfigurationError(f"shape={text} lacks a dimension; write a shape as {EXAMPLES}.")
    if not parts:
        raise ConfigurationError(f"shape={text} has no dimension; write it as {EXAMPLES}.")
    return require_size(tuple(_dimension(part, text) for part in parts))


def require_size(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape within any memory's size.

    Raises: ConfigurationError for more values than that.
    """
    if math.prod(shape) > MOST_VALUES:
        raise ConfigurationError(
            f"shape={'x'.join(map(str, shape))} has {math.prod(shape):.3g} values, more than any memory; at most "
            f"{MOST_VALUES:.0e}."
        )
    return shape


def _dimension(part: str, text: str) -> int:
    try:
        return parse_whole(part, "dimension")
    except ConfigurationError:
        where = "" if part == text.strip() else f" of shape={text}"
        if find_format(part):
            raise ConfigurationError(
                f"{part}{where} is a format; write it apart: {text.replace(part, '').rstrip('x,')} {part}."
            ) from None
        raise ConfigurationError(
            f"{part}{where} is not a whole number of at least 1; write a shape as {EXAMPLES}."
        ) from None
