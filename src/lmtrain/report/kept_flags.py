"""The flags of a command without which its next one would not compose."""

from collections.abc import Iterable


def kept_flags(*, config_dir: str | None, allowed: Iterable[str]) -> list[str]:
    """Return the words for a person's own folder of options and for the allowed targets."""
    own = [] if config_dir is None else ["--config-dir", config_dir]
    return [*own, *(word for target in allowed for word in ("--allow-target", target))]
