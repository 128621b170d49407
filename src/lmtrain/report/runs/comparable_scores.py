"""A run's held-out scores that compare: those of the bytes of its newest score."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.tracking.run_log import OF_VALIDATION, Point, held_out_bytes

MUCH_MORE_BYTES: Final = 1.01  # beyond it two measurements are of different parts of a text


def comparable(points: Sequence[Point]) -> list[Point]:
    """Return the points without validation's scores of other bytes than its newest: no line may join the two."""
    newest = next((held_out_bytes(point) for point in reversed(points) if BITS_PER_BYTE in point.metrics), None)
    return [
        _without_scores(point) if BITS_PER_BYTE in point.metrics and held_out_bytes(point) != newest else point
        for point in points
    ]


def other_bytes(points: Sequence[Point]) -> dict[int | None, int]:
    """Count the scores left out by `comparable`, by their bytes."""
    scored = [held_out_bytes(point) for point in points if BITS_PER_BYTE in point.metrics]
    return {each: scored.count(each) for each in dict.fromkeys(scored) if each != scored[-1]}


def left_out_words(points: Sequence[Point]) -> str | None:
    """Say how many scores are left out and why, None where all compare."""
    counts = other_bytes(points)
    if not counts:
        return None
    of = ", ".join(f"{number} of {'other' if each is None else f'{each:,}'} bytes" for each, number in counts.items())
    return f"Left out, as they do not compare: scores of other held-out text, {of}."


def _without_scores(point: Point) -> Point:
    kept = {name: value for name, value in point.metrics.items() if not name.startswith(OF_VALIDATION)}
    return replace(point, metrics=kept)
