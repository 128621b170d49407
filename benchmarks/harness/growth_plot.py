"""Small log-log plots side by side as one SVG: what was measured as dots, the expected slope as a dashed line."""

import math
from collections.abc import Callable, Sequence
from typing import Any

WIDTH, HEIGHT, COLUMNS = 280, 180, 4
LEFT, RIGHT, TOP, BOTTOM = 12, 12, 34, 26


def plot(curves: Sequence[dict[str, Any]]) -> str:
    """Return an SVG with a panel for each curve."""
    rows = -(-len(curves) // COLUMNS)
    panels = [_panel(each, WIDTH * (at % COLUMNS), HEIGHT * (at // COLUMNS)) for at, each in enumerate(curves)]
    size = f'width="{WIDTH * COLUMNS}" height="{HEIGHT * rows}" viewBox="0 0 {WIDTH * COLUMNS} {HEIGHT * rows}"'
    style = 'font-family="sans-serif" font-size="11" fill="#333"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(panels)
        + "\n</svg>\n"
    )


def _panel(curve: dict[str, Any], x: int, y: int) -> str:
    points = [(math.log10(at), math.log10(max(value, 1e-12))) for at, value in curve["points"]]
    last_x, last_y = points[-1]
    expected = [(at, last_y + curve["expected_at_most"] * (at - last_x)) for at, _ in points]
    heights = [value for _, value in [*points, *expected]]
    low, high = min(heights), max(max(heights), min(heights) + 1.0)
    place_x = _scale(points[0][0], last_x, LEFT, WIDTH - RIGHT)
    place_y = _scale(low, high, HEIGHT - BOTTOM, TOP)
    dots = "".join(f'<circle cx="{place_x(at):.1f}" cy="{place_y(v):.1f}" r="3" fill="#2a78d6"/>' for at, v in points)
    colour = "#333" if curve["ok"] else "#e34948"
    first, last = curve["points"][0], curve["points"][-1]
    told = f"slope {curve['slope']:.2f}, at most {curve['expected_at_most']:g}"
    return (
        f'<g transform="translate({x},{y})"><text x="{LEFT}" y="14" font-weight="bold">{curve["name"]}</text>'
        f'<text x="{LEFT}" y="28" fill="{colour}">{told}</text>'
        f"{_line(points, place_x, place_y, 'stroke=&quot;#2a78d6&quot;')}"
        f"{_line(expected, place_x, place_y, 'stroke=&quot;#898781&quot; stroke-dasharray=&quot;4 3&quot;')}{dots}"
        f'<text x="{LEFT}" y="{HEIGHT - 8}">{first[0]:,.0f}: {_short(first[1], curve["unit"])}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{last[0]:,.0f}: '
        f"{_short(last[1], curve['unit'])}</text></g>"
    ).replace("&quot;", '"')


def _line(
    points: Sequence[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float], look: str
) -> str:
    path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
    return f'<polyline points="{path}" fill="none" stroke-width="1.5" {look}/>'


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    return lambda value: first + (value - low) / ((high - low) or 1.0) * (last - first)


def _short(value: float, unit: str) -> str:
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.2g} {unit}"
