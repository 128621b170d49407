"""The learning rate of a range test: an exponential rise; https://arxiv.org/abs/1506.01186, section 3.3."""

from lmtrain.errors import ConfigurationError


def range_test(step: int, total_steps: int, *, lowest: float, highest: float) -> float:
    """Rise from `lowest` at step 0 to `highest` at the last one, by the same factor each step.

    Raises:
        ConfigurationError: The range is empty, or reaches 0.
    """
    if not 0 < lowest < highest:
        raise ConfigurationError(
            f"schedule.lowest={lowest:g} is not above 0 and below schedule.highest={highest:g}; nearest valid: "
            "0.001 and 100."
        )
    last = max(1, total_steps - 1)
    return lowest * (highest / lowest) ** (min(step, last) / last)
