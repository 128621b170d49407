"""The doctor's findings for people: a line a check, with its remedy below where it is not well."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.observed.measured import MeasuredDevice
from lmtrain.accounting.quantities import format_count
from lmtrain.doctor.finding import Finding

STYLES: Final = {"ok": "green", "warn": "yellow", "bad": "bold red"}


def page(findings: Sequence[Finding], device: MeasuredDevice | None) -> RenderableType:
    """Lay out the findings, then the measurements, then the verdict."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column()
    for finding in findings:
        table.add_row(Text(finding.state, style=STYLES[finding.state]), finding.name, finding.found)
        if finding.fix:
            table.add_row("", "", Text(f"-> {finding.fix}", style="bold"))
    parts: list[RenderableType] = [table]
    if device is not None:
        parts.append(Text(f"\nmeasured: {measured_line(device)}"))
    return Group(*parts, Text(f"\n{verdict(findings)}", style="bold"))


def measured_line(device: MeasuredDevice) -> str:
    """Return the line of a device's measurements."""
    peaks = ", ".join(f"{flops / 1e12:.3g} TFLOP/s in {dtype}" for dtype, flops in device.matmul_flops.items())
    threads = "" if device.threads is None else f" on {format_count(device.threads, 'thread')}"
    copy = "" if device.copy_bytes_per_second is None else f"; copies at {device.copy_bytes_per_second / 1e9:.3g} GB/s"
    return f"{device.name}{threads}: {peaks}{copy}"


def verdict(findings: Sequence[Finding]) -> str:
    """Count the bad findings and warnings."""
    num_bad = sum(finding.state == "bad" for finding in findings)
    num_warnings = sum(finding.state == "warn" for finding in findings)
    if num_bad:
        return f"not ready: {num_bad} in the way, {num_warnings} worth knowing"
    return f"ready, {num_warnings} worth knowing" if num_warnings else "ready"
