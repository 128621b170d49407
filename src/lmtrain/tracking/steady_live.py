"""A live display without leftovers when its terminal becomes narrower."""

import math

from rich.console import ConsoleRenderable, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment
from typing_extensions import override


class SteadyLive(Live):
    """Erase the last drawing also where the terminal has wrapped its lines since: a narrower one needs more rows."""

    _renderable_now: RenderableType = ""
    _drawn_widths: tuple[int, ...] = ()  # of each line, in columns

    @override
    def get_renderable(self) -> RenderableType:
        self._renderable_now = super().get_renderable()
        return self._renderable_now

    @override
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        size = self.console.size
        rows = sum(math.ceil(width / size.width) - 1 for width in self._drawn_widths if width)
        lines = self.console.render_lines(self._renderable_now, pad=False)[: size.height]
        self._drawn_widths = tuple(map(Segment.get_line_length, lines))
        wrapped = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * rows
        return [Control(ControlType.CARRIAGE_RETURN, *wrapped), *super().process_renderables(renderables)]
