"""The steps of an attempt with a profiler (how many before, how many recorded, on which ranks), and their folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError
from lmtrain.training.loop.last_step import LastStep

FOLDER: Final = "profile"  # of a run
# In the order of torch's columns (2.13), the first of which is always empty.
MEMORY_KINDS: Final[tuple[str, ...]] = (
    "parameters",
    "optimizer state",
    "inputs",
    "temporaries",
    "activations",
    "gradients",
    "autograd's own",
    "others",
)


@dataclass(frozen=True, kw_only=True)
class ProfiledSteps:
    """Steps `wait_steps + 1` to `wait_steps + num_steps` of an attempt, on `ranks` (None: all).

    Raises:
        ConfigurationError: Fewer than none, a rank that the run does not have, or a run that ends before.
    """

    wait_steps: int
    num_steps: int
    ranks: Sequence[int] | None
    num_ranks: int
    last_step: LastStep

    def __post_init__(self) -> None:
        if self.wait_steps < 0:
            raise ConfigurationError(f"profiler.wait_steps={self.wait_steps} is below 0; nearest valid: 0.")
        for rank in self.ranks or ():
            if not 0 <= rank < self.num_ranks:
                valid = f"0 to {self.num_ranks - 1}" if self.num_ranks > 1 else "0 alone"
                raise ConfigurationError(f"profiler.ranks={[*(self.ranks or ())]}: the run has {valid}; null is all.")
        if self.ranks is not None and not self.ranks:
            raise ConfigurationError("profiler.ranks=[] records nothing; nearest valid: [0], or profiler=none.")
        needed = self.wait_steps + self.num_steps
        if self.last_step.seconds is None and needed > self.last_step.steps:
            most = self.last_step.steps - self.num_steps
            fix = f"profiler.wait_steps={most}" if most >= 0 else f"a budget of {format_count(needed, 'step')}"
            raise ConfigurationError(
                f"profiler.wait_steps={self.wait_steps} and the {self.num_steps} steps recorded after them are beyond "
                f"the run's {format_count(self.last_step.steps, 'step')}; nearest valid: {fix}."
            )

    def includes_rank(self, rank: int) -> bool:
        """Tell whether a rank records."""
        return self.ranks is None or rank in self.ranks


def profile_file(folder: Path, name: str) -> Path:
    """Return a file's place in a run's folder of profiles, which is made."""
    (folder / FOLDER).mkdir(exist_ok=True)
    return folder / FOLDER / name
