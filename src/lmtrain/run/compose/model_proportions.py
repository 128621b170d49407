"""The feed-forward of a model option at another width: a number in its file, which a typed width leaves as it is."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmtrain.run.compose.help_topics import option_rows
from lmtrain.run.compose.paths import conf_folder

WIDTH: Final = "model.width"
FEED_FORWARD: Final = "model.feed_forward_width"


def feed_forward_at(option: str, width: int) -> int | None:
    """Return the feed-forward width in an option's own proportion; None where its file has no such numbers."""
    own = _own_sizes(option)
    return own[1] * width // own[0] if own else None


def width_line(option: str, model: Mapping[str, Any], typed: Sequence[str]) -> str | None:
    """Return a note of a typed width whose feed-forward has another proportion than the option's; None without."""
    keys = {word.lstrip("+").partition("=")[0] for word in typed}
    own, width, inner = _own_sizes(option), model.get("width"), model.get("feed_forward_width")
    if WIDTH not in keys or FEED_FORWARD in keys or own is None:
        return None
    if not (isinstance(width, int) and isinstance(inner, int)) or inner * own[0] == own[1] * width:
        return None
    return (
        f"{FEED_FORWARD}={inner} is {inner / width:.3g} x {WIDTH}={width}, where model={option} has "
        f"{own[1] / own[0]:.3g} x; {FEED_FORWARD}={own[1] * width // own[0]} keeps that"
    )


def _own_sizes(option: str) -> tuple[int, int] | None:
    """Return the width and feed-forward width in an option's file, or those extended by it."""
    file = conf_folder() / "model" / f"{option}.yaml"
    rows = {key: value for key, (value, _) in option_rows(file)} if file.is_file() else {}
    found = [rows.get(key, "").replace("_", "") for key in (WIDTH, FEED_FORWARD)]
    return (int(found[0]), int(found[1])) if all(map(str.isdigit, found)) else None
