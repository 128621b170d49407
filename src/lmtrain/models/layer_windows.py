"""The layers with a sliding window and those with the whole context (Mistral, arXiv 2310.06825 section 2; nanochat)."""

from lmtrain.errors import ConfigurationError

WINDOW, WHOLE = "S", "L"


def layer_windows(num_layers: int, *, window_tokens: int | None, pattern: str | None) -> tuple[int | None, ...]:
    """Return how many tokens each layer sees, itself included; None is all.

    `pattern` spells layers, over and over: S sees `window_tokens`, L the whole context. None gives all the window.
    Raises: ConfigurationError for other letters, a window below 1, or a pattern without a window.
    """
    if window_tokens is not None and window_tokens < 1:
        raise ConfigurationError(f"model.window_tokens={window_tokens} is below 1; nearest valid: 1, or null for all.")
    if pattern is None:
        return (window_tokens,) * num_layers
    check_pattern(pattern)
    if window_tokens is None:
        raise ConfigurationError(
            f"model.window_pattern={pattern} has no effect without model.window_tokens; nearest valid: null."
        )
    return tuple(window_tokens if pattern[i % len(pattern)] == WINDOW else None for i in range(num_layers))


def check_pattern(pattern: str) -> None:
    """Raise ConfigurationError unless a pattern is one or more letters S and L."""
    if not pattern or set(pattern) - {WINDOW, WHOLE}:
        nearest = "".join(letter for letter in pattern.upper() if letter in (WINDOW, WHOLE)) or "SSSL"
        raise ConfigurationError(
            f"model.window_pattern={pattern!r} is not letters {WINDOW} (a window) and {WHOLE} (the whole context); "
            f"nearest valid: {nearest}."
        )
