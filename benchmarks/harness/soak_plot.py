"""The panels of a soak as one SVG: memory, handles, threads and CPU time of each process against its steps."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

WIDTH, HEIGHT = 280, 150
LEFT, RIGHT, TOP, BOTTOM = 12, 12, 40, 26
QUANTITIES: Final = {
    "private_mib": "private memory, MiB",
    "handles": "open handles",
    "threads": "threads",
    "cpu_ms": "CPU ms a step or value",
}

UNITS: Final = {"trainer": "steps", "mlflow": "values"}


def plot(result: dict[str, Any]) -> str:
    """Return an SVG with a row a process and a panel a quantity, each axis from 0."""
    panels = []
    for row, (process, samples) in enumerate(result["samples"].items()):
        for column, (key, title) in enumerate(QUANTITIES.items()):
            points = _cpu_ms(samples) if key == "cpu_ms" else [(each["progress"], each[key]) for each in samples]
            panels.append(_panel(f"{process}: {title}", points, UNITS[process], WIDTH * column, HEIGHT * row))
    width, height = WIDTH * len(QUANTITIES), HEIGHT * len(result["samples"])
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    style = 'font-family="sans-serif" font-size="11" fill="#333"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, *panels, "</svg>\n"])


def _cpu_ms(samples: Sequence[dict[str, Any]], *, num_parts: int = 50) -> list[tuple[float, float]]:
    """Return CPU milliseconds a step over parts of the run; a look alone is too short to divide by."""
    every = max(1, len(samples) // num_parts)
    ends = samples[::every]
    least = samples[-1]["progress"] / num_parts / 4  # the last part is the end's own work, over few steps or none
    pairs = [(a, b) for a, b in itertools.pairwise(ends) if b["progress"] - a["progress"] > least]
    return [
        (b["progress"], 1e3 * (b["cpu_seconds"] - a["cpu_seconds"]) / (b["progress"] - a["progress"])) for a, b in pairs
    ]


def _panel(title: str, points: Sequence[tuple[float, float]], unit: str, x: int, y: int) -> str:
    last, high = max(at for at, _ in points) or 1, max(value for _, value in points) * 1.1 or 1
    place_x: Callable[[float], float] = lambda at: LEFT + at / last * (WIDTH - LEFT - RIGHT)  # noqa: E731
    place_y: Callable[[float], float] = lambda value: HEIGHT - BOTTOM - value / high * (HEIGHT - TOP - BOTTOM)  # noqa: E731
    path = " ".join(f"{place_x(at):.1f},{place_y(value):.1f}" for at, value in points)
    least, most = min(value for _, value in points), max(value for _, value in points)
    floor = HEIGHT - BOTTOM
    return (
        f'<g transform="translate({x},{y})"><text x="{LEFT}" y="14" font-weight="bold">{title}</text>'
        f'<text x="{LEFT}" y="28" fill="#666">{least:,.3g} to {most:,.3g}</text>'
        f'<line x1="{LEFT}" y1="{floor}" x2="{WIDTH - RIGHT}" y2="{floor}" stroke="#ccc"/>'
        f'<polyline points="{path}" fill="none" stroke="#2a78d6" stroke-width="1.5"/>'
        f'<text x="{LEFT}" y="{HEIGHT - 10}">0</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{last:,.0f} {unit}</text></g>'
    )
