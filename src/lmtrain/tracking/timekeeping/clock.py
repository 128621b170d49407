"""Unix seconds for stamps whose differences are durations: the clock as this process found it, and no jump after that.

A machine whose clock is corrected by an hour in the middle of a run has not trained for an hour longer.
"""

import time
from typing import Final

_AT_START: Final = time.time() - time.monotonic()


def unix_seconds(at: float | None = None) -> float:
    """Return the moment `at` of time.monotonic's clock, None for now, in unix seconds."""
    return _AT_START + (time.monotonic() if at is None else at)
