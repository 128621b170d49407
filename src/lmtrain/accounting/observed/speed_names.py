"""The name of a speed by its tokens: all of them, or those with loss."""

from typing import Final

ALL_OF_THEM: Final = 0.97  # the first step's tokens are not timed


def speed_name(loss_share: float) -> str:
    """Name the tokens of a speed: those with loss, where others are a share to speak of."""
    return "tokens/s" if loss_share > ALL_OF_THEM else "tokens/s with loss"
