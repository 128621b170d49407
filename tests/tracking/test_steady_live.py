import io
import math

import pytest
from rich.console import Console

from lmtrain.tracking.live_view import SteadyLive

UP, ERASE = "\x1b[1A", "\x1b[2K"


@pytest.mark.parametrize("narrower", [30, 17])
def test_all_rows_are_erased_that_the_drawn_lines_take_in_a_narrower_terminal(narrower):
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=20, _environ={})
    lines = ["x" * 60, "y" * 31, "", "z"]
    with SteadyLive("\n".join(lines), console=console, auto_refresh=False) as live:
        live.refresh()
        assert written(console).count(UP) == len(lines) - 1, "as wide as before: only its own lines"
        console.width = narrower
        live.refresh()
        rows = sum(max(1, math.ceil(len(line) / narrower)) for line in lines)
        text = written(console)
        assert text.count(UP) == rows - 1
        assert text.count(ERASE) == rows
        console.width = 80
        live.refresh()
        assert written(console).count(UP) == rows - 1, "drawn in the narrow one as many lines, none wrapped since"


def written(console):
    """Return what was written since the last look."""
    text = console.file.getvalue()
    console.file.seek(0)
    console.file.truncate()
    return text
