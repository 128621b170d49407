"""Figures for Prometheus: counts, gauges and histograms of seconds, in its text format 0.0.4."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import final

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival to its first token",
    "time_per_token_seconds": "From one token of a text to its next",
    "request_seconds": "From a request's arrival to its end",
}


@final
class Histogram:
    """How many seconds something took, in the buckets of `BOUNDS`."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> list[str]:
        """Return its lines for Prometheus: each bucket counts those below it too."""
        total, lines = 0, list[str]()
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self._sum}", f"{name}_count {total}"]


@final
class ServerMetrics:
    """A server's counts so far; for one thread."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.new_tokens = 0
        self.requests: Counter[int] = Counter()
        self.histograms = {name: Histogram() for name in HISTOGRAMS}

    def page(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return everything as text; `gauges` are the present figures by name, each a description and a value."""
        lines = _family("prompt_tokens_total", "counter", "Tokens of prompts", [f" {self.prompt_tokens}"])
        lines += _family("new_tokens_total", "counter", "Tokens written", [f" {self.new_tokens}"])
        by_status = [f'{{status="{status}"}} {count}' for status, count in sorted(self.requests.items())]
        lines += _family("requests_total", "counter", "Requests answered, by HTTP status", by_status)
        for name, (text, value) in gauges.items():
            lines += _family(name, "gauge", text, [f" {value}"])
        for name, text in HISTOGRAMS.items():
            lines += [*_family(name, "histogram", text, []), *self.histograms[name].lines(f"lmtrain_{name}")]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, values: list[str]) -> list[str]:
    name = f"lmtrain_{name}"
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(f"{name}{value}" for value in values)]
