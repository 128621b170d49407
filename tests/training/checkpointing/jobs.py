"""What tests let the writing process do: it imports this module by its name."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True)
class Sum:
    """Write the sum of a tensor to a file."""

    values: Tensor
    path: Path

    def __call__(self) -> int:
        self.path.write_text(str(float(self.values.sum())))
        return self.path.stat().st_size


@dataclass(frozen=True)
class Refuse:
    """Fail as on a full disk."""

    def __call__(self) -> int:
        raise OSError("No space left on device")


@dataclass(frozen=True)
class Die:
    """End the process in the middle of its work."""

    def __call__(self) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


@dataclass(frozen=True)
class Sleep:
    """Tell the process's number, and take long."""

    path: Path

    def __call__(self) -> int:
        half = self.path.with_suffix(".half")
        half.write_text(f"{os.getpid()} {os.nice(0)}")
        half.rename(self.path)
        time.sleep(60)
        return 0
