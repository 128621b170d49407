"""The words of fleet's terms, `fleet.TERM=VALUE`, as numbers."""

import math
import re
from collections.abc import Iterable
from typing import Any, Final

from lmtrain.accounting.machine.hardware import MATMUL_DTYPES, MatmulDtype
from lmtrain.accounting.quantities import parse_quantity, parse_whole
from lmtrain.errors import ConfigurationError, did_you_mean, suggest

PREFIX: Final = "fleet."
AMOUNTS: Final = (
    "num_parameters", "tokens", "tokens_per_parameter", "flops", "num_devices", "hours", "days", "device_hours", "mfu",
    "usd",
)  # fmt: skip
RATES: Final = ("usd_per_gpu_hour", "peak_flops")
WORDS: Final = ("device", "dtype")
TERMS: Final = (*AMOUNTS, *RATES, *WORDS)
SYNONYMS: Final = {
    "gpus": "num_devices", "num_gpus": "num_devices", "devices": "num_devices", "model": "num_parameters",
    "parameters": "num_parameters", "params": "num_parameters", "time": "hours", "dollars": "usd", "gpu": "device",
    "price": "usd_per_gpu_hour", "compute": "flops", "ratio": "tokens_per_parameter", "gpu_hours": "device_hours",
    "precision": "dtype",
}  # fmt: skip
STEPS: Final = 4  # between the ends of a range of utilization
_BETWEEN: Final = re.compile(r"(?<=[\d.%])\s*(?:-|\.\.|,|:|\bto\b)\s*(?=[\d.])")
_THOUSANDS: Final = re.compile(r"\d{1,3}(,\d{3})+")  # a number as people write it


def is_fleet(words: Iterable[str]) -> bool:
    """Tell whether a command line asks for the equation rather than for the plan of a config."""
    return any(word.startswith(PREFIX) for word in words)


def read_terms(words: Iterable[str]) -> dict[str, Any]:
    """Return fleet's terms by name as numbers, days as hours; null marks a term as the unknown one.

    A range of utilization, 0.3-0.5, is a tuple of values from its lower end to its upper one.

    Raises:
        ConfigurationError: No such term, one given twice, or a value of another unit.
    """
    terms: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        name = key.removeprefix(PREFIX)
        if name not in TERMS:
            raise ConfigurationError(f"{word}: there is no term {key}; fleet has {', '.join(TERMS)}.{_nearest(name)}")
        if name in terms or (name in ("days", "hours") and terms.keys() & {"days", "hours"}):
            what = "the time" if name in ("days", "hours") else key
            raise ConfigurationError(f"{word}: {what} is given twice; leave one out.")
        terms[name] = None if value == "null" else value if name in WORDS else _number(name, value)
    if "days" in terms:
        days = terms.pop("days")
        terms["hours"] = None if days is None else days * 24
    return terms


def as_typed(message: str, words: Iterable[str]) -> str:
    """Return a message with its hours as days, at least as many, where days are typed."""
    if not any(word.startswith(f"{PREFIX}days=") for word in words):
        return message
    return re.sub(r"fleet\.hours=(\d+)", lambda found: f"fleet.days={math.ceil(int(found[1]) / 2.4) / 10:g}", message)


def read_dtype(word: str) -> MatmulDtype:
    """Return a format of matrix products.

    Raises:
        ConfigurationError: It is none.
    """
    if word not in MATMUL_DTYPES:
        raise ConfigurationError(
            f"fleet.dtype={word} is not one of {', '.join(MATMUL_DTYPES)}.{suggest(word, MATMUL_DTYPES)}"
        )
    return word


def _number(name: str, value: str) -> float | tuple[float, ...]:
    key = PREFIX + name
    if name == "mfu" and len(ends := _BETWEEN.split(value)) > 1:
        return _range(value, ends)
    first, comma, _ = value.partition(",")
    if comma and first and not _THOUSANDS.fullmatch(value):
        raise ConfigurationError(
            f"{key}={value} has several values; choose one, as in {key}={first}, or add -m for a fleet of each."
        )
    number = parse_quantity(value, key)
    if number <= 0:
        raise ConfigurationError(f"{key}={value} is not above 0; leave it out to have it computed.")
    return parse_whole(value, key) if name == "num_devices" else number


def _range(value: str, ends: list[str]) -> tuple[float, ...]:
    """Return utilizations from the first to the last, evenly apart."""
    shares = [float(end.rstrip("%")) / (100 if value.endswith("%") else 1) for end in ends if _is_number(end)]
    if len(shares) < len(ends) or not 0 < min(shares) < max(shares) <= 1:
        raise ConfigurationError(
            f"fleet.mfu={value} is not a range above 0 and at most 1; write it as fleet.mfu=0.3-0.5."
        )
    low, high = min(shares), max(shares)
    if "%" in value or len(ends) > 2 or shares != [low, high] or not re.search(r"-|\.\.", value):
        raise ConfigurationError(
            f"fleet.mfu={value} is not a range as fleet reads it; write it as fleet.mfu={low:g}-{high:g}."
        )
    return tuple(round(low + (high - low) * step / STEPS, 6) for step in range(STEPS + 1))


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"\d*\.?\d+%?|\d+\.", text))


def _nearest(name: str) -> str:
    return did_you_mean([SYNONYMS[name]]) if name in SYNONYMS else suggest(name, TERMS)
