"""Read and write quantities the way people type them: 20M, 1.5B, 4K, 2h30min, 80GiB, $500."""

import math
import re
import sys
from typing import Final, Literal

from lmtrain.errors import ConfigurationError

Unit = Literal["count", "seconds", "minutes", "hours", "days", "bytes", "gib", "usd"]

_POWERS: Final[dict[str, float]] = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
_BINARY_POWERS: Final[dict[str, float]] = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50}
_SECONDS: Final[dict[str, float]] = {
    "ms": 1e-3, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800,
}  # fmt: skip
_SIZE_OF_UNIT: Final[dict[Unit, float]] = {
    "count": 1, "seconds": 1, "minutes": 60, "hours": 3600, "days": 86400, "bytes": 1, "gib": 2**30, "usd": 1,
}  # fmt: skip
_NOUN: Final[dict[str, str]] = {"count": "a number", "time": "a time", "bytes": "an amount of memory", "usd": "a price"}
_EXAMPLES: Final[dict[str, str]] = {
    "count": "20M, 1.5B, 4K, 1_000, 0.1 or 3e-4",
    "time": "2h, 90min, 1h30min or a plain number",
    "bytes": "80GiB, 80GB or a plain number",
    "usd": "$500, 500 or 1.2K",
}
_SHARE: Final = re.compile(r"(\d+(?:\.\d*)?)\s*%")
_OF_STEPS: Final = re.compile(r"(warmup|warmdown)_(steps|tokens)$")
_DEVICE_HOURS: Final = "device_hours"
LARGEST: Final = sys.float_info.max
_TERM: Final = re.compile(r"(\d+(?:_\d+)*(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*([a-z]*)", re.IGNORECASE)


def unit_of(key: str) -> Unit:
    """Return the unit in the last word of a configuration key; a rate has the unit of its numerator.

    Device hours are a number: 50K of them.
    """
    name = key.rpartition(".")[2].partition("_per_")[0]
    if name.endswith(_DEVICE_HOURS):
        return "count"
    word = name.rpartition("_")[2]
    return word if word in _SIZE_OF_UNIT else "count"


def parse_quantity(value: str | float, key: str = "value", *, unit: Unit | None = None) -> int | float:
    """Return the quantity in `unit`, an int when it is whole; a plain number is in `unit`; None is the key's.

    Raises: ConfigurationError for anything but one finite quantity.
    """
    unit = unit or unit_of(key)
    if not isinstance(value, str):
        if not _is_finite(value):
            raise _not_a_quantity(value, unit, key)
        return value
    terms = _terms(value.strip().removeprefix("$") if unit == "usd" else value.strip())
    kind = _kind(unit)
    if not terms or (len(terms) > 1 and (kind != "time" or not all(suffix for _, suffix in terms))):
        raise _not_a_quantity(value, unit, key)
    sizes = [_size(suffix, unit) for _, suffix in terms]
    total = sum(number * (size or math.nan) for (number, _), size in zip(terms, sizes, strict=True))
    if not math.isfinite(total):
        raise _not_a_quantity(value, unit, key)
    return _whole(total)


def parse_whole(value: str | float, key: str) -> int:
    """Return a quantity as a whole number of at least 1."""
    number = parse_quantity(value, key)
    if number < 1:
        raise ConfigurationError(f"{key}={value} is below 1. Did you mean 1?")
    if not float(number).is_integer():
        raise ConfigurationError(f"{key}={value} is not a whole number. Did you mean {round(number)}?")
    return int(number)


def format_quantity(number: float, unit: Unit = "count", *, digits: int = 1) -> str:
    """Write a quantity for people: 20.0M, 2h30min, 80.0GB (1e9 bytes, as a plan counts), $500.

    `digits` come after the point of a count and of bytes.
    """
    if unit in ("bytes", "gib"):
        return _format_power(number * _SIZE_OF_UNIT[unit], 1000, ("B", "KB", "MB", "GB", "TB", "PB"), digits)
    if unit == "usd":
        return _format_dollars(number)
    if unit == "count":
        return _format_power(number, 1000, ("", "K", "M", "B", "T", "P", "E"), digits)
    return _format_seconds(number * _SIZE_OF_UNIT[unit])


def _format_dollars(number: float) -> str:
    """Write dollars: whole ones from $100 on, fewer in three digits."""
    if number == 0:
        return "$0.00"
    number = float(f"{number:.3g}") if abs(number) < 100 else number
    return f"${number:,.{max(0, 2 - math.floor(math.log10(abs(number))))}f}"


def typed_hours(hours: float) -> str:
    """Write hours as a person types them: 2.5, 30min, 3s."""
    units = ((1, ""), (60, "min"), (3600, "s"))
    per_hour, unit = next((each for each in units if hours * each[0] >= 1), units[-1])
    return f"{hours * per_hour:.6g}{unit}"


def format_days(days: float) -> str:
    """Write days: 1 day, 0.35 days."""
    number = format_ratio(days)
    return f"{number} day" if number == "1" else f"{number} days"


def format_count(number: float, noun: str, plural: str | None = None) -> str:
    """Write a whole number of things: 1 device, 1,024 devices; `plural` is the noun's where an s does not make it."""
    return f"{number:,.0f} {noun if number == 1 else plural or noun + 's'}"


def format_ratio(number: float) -> str:
    """Write a plain number: whole from 100 on, with commas, fewer in three digits."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def format_at_most(number: float) -> str:
    """Write a count in three digits, read back as it or a little less."""
    if number >= 1e15:  # FLOPs: no readable suffix
        power = math.floor(math.log10(number))
        return f"{math.floor(number / 10.0 ** (power - 2)) / 100:g}e{power}"
    for suffix, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            digits = max(0, 2 - math.floor(math.log10(number / size)))
            return f"{math.floor(number / size * 10**digits) / 10**digits:g}{suffix}"
    return f"{math.floor(number)}"


def _terms(text: str) -> list[tuple[float, str]]:
    """Split "1h30min" into [(1, "h"), (30, "min")]; empty when any character is left over."""
    if _TERM.sub("", text).strip():
        return []
    return [(float(number), suffix) for number, suffix in _TERM.findall(text)]


def _size(suffix: str, unit: Unit) -> float | None:
    """Return one of `suffix` in `unit`, or None for a suffix of another kind."""
    if suffix == "":
        return 1
    kind = _kind(unit)
    if kind == "time" and suffix == "M":  # millions, as everywhere else; never minutes
        return None
    suffix = suffix.lower()
    if kind == "time":
        table = _SECONDS
    elif kind == "bytes":
        table = {f"{power}b": size for power, size in (_POWERS | _BINARY_POWERS).items() if power != "b"}
    else:
        table = _POWERS | _BINARY_POWERS if kind == "count" else _POWERS | {"usd": 1}
    return table[suffix] / _SIZE_OF_UNIT[unit] if suffix in table else None


def _kind(unit: Unit) -> str:
    if unit in ("seconds", "minutes", "hours", "days"):
        return "time"
    return "bytes" if unit == "gib" else unit


def _whole(number: float) -> int | float:
    """Return a whole number as such, one by a rounding of the last digit as well: 4.1 times a million is below it."""
    return round(number) if math.isclose(number, round(number), rel_tol=1e-15) else number


def _is_finite(value: object) -> bool:
    """Return whether a value, of a file perhaps and of any kind, is a number that is not too large."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _not_a_quantity(value: object, unit: Unit, key: str) -> ConfigurationError:
    kind = _kind(unit)
    if isinstance(value, str) and (share := _SHARE.fullmatch(value.strip())):
        of_shares = _OF_STEPS.sub(r"\1_fraction", key)
        return ConfigurationError(f"{key}={value} is a share; write it as {of_shares}={float(share.group(1)) / 100:g}.")
    sign = " of at least 0" if isinstance(value, str) and value.strip().startswith("-") else ""
    return ConfigurationError(f"{key}={value} is not {_NOUN[kind]}{sign}; write it as {_EXAMPLES[kind]}.")


def _format_power(number: float, base: int, suffixes: tuple[str, ...], digits: int) -> str:
    if abs(number) < base:
        return f"{number:g}{suffixes[0]}"
    power = 0
    while abs(number) >= base * (1 - 0.5e-3) and power < len(suffixes) - 1:
        number /= base
        power += 1
    return f"{number:.{digits}f}{suffixes[power]}"


def _format_seconds(seconds: float) -> str:
    if 0 < seconds < 0.0995:
        return f"{seconds * 1000:.2g}ms"
    if seconds < 60:
        return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.2g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    return f"{hours}h{minutes:02d}min" if hours else f"{minutes}min{rest:02d}s"
