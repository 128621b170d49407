"""The words for how long to train: other programs count time in parts, hours of all devices, or batches."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from lmtrain.accounting.quantities import format_count, parse_quantity
from lmtrain.run.compose.foreign.batches import TypedBatch
from lmtrain.run.compose.foreign.table import Equivalent

UNITS: Final = {"ba": "steps", "step": "steps", "steps": "steps", "ep": "epochs", "epochs": "epochs", "tok": "tokens"}


def _time(value: str, _: Mapping[str, str]) -> Equivalent:
    """Return hours for 2h, DAYS:HOURS:MINUTES:SECONDS of Lightning, DAYS-HOURS:MINUTES of SLURM, or seconds."""
    parts = [int(part) for part in re.split(r"[:-]", value)] if re.fullmatch(r"\d+(?:[:-]\d+)+", value) else []
    if not parts:
        return (
            Equivalent((f"budget.hours={value}s",), "plain numbers are seconds elsewhere")
            if value.isdigit()
            else (Equivalent((f"budget.hours={value}",)))
        )
    units = (86_400, 3600, 60, 1)[: len(parts)] if "-" in value else (86_400, 3600, 60, 1)[-len(parts) :]
    minutes, rest = divmod(sum(part * unit for part, unit in zip(parts, units, strict=True)), 60)
    return Equivalent((f"budget.hours={f'{60 * minutes + rest}s' if rest else f'{minutes}min'}",))


def _device_hours(value: str, typed: Mapping[str, str]) -> Equivalent:
    """Return hours of a run for hours of all its devices together."""
    num_devices = TypedBatch(typed).devices
    hours = parse_quantity(value, value) / num_devices
    return Equivalent((f"budget.hours={hours:.6g}",), f"{value} over {format_count(num_devices, 'device')}")


def _duration(value: str, typed: Mapping[str, str]) -> Equivalent:
    """Return a budget for 100ba, 1ep, 2e9T, or a number with its unit beside it."""
    found = re.fullmatch(r"(\d[\d._]*(?:e[+-]?\d+)?)\s*([a-zA-Z]*)", value)
    unit = (found[2].lower() if found else "") or typed.get("max_duration.unit", "steps")
    name = "tokens" if unit in ("t", "tok", "tokens") else UNITS.get(unit, "steps")
    return Equivalent((f"budget.{name}={found[1] if found else value}",))


TIMES: Final[Mapping[str, Callable[[str, Mapping[str, str]], Equivalent]]] = {
    "times": _time,
    "device_hours": _device_hours,
    "durations": _duration,
}
