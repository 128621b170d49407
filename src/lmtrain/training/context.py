"""What a run is made of, as seen by its callbacks: facts fixed before the first step."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from lmtrain.accounting.plan import Plan
from lmtrain.data.shards import Dataset
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tracking.events import EventLog
from lmtrain.tracking.run_log import RunLog


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Facts that a callback may use; a constructor that names a parameter `context` receives it.

    `log` is None on every rank but the first, which alone writes metrics and console lines.
    `identity` names what a checkpoint must share with the run that resumes from it.
    """

    folder: Path
    plan: Plan
    dataset: Dataset
    tokenizer: Tokenizer
    identity: dict[str, str | int | float | None]
    events: EventLog
    log: RunLog | None
    rank: int = 0
    started_at: float = field(default_factory=time.time)

    @property
    def is_main_process(self) -> bool:
        """Tell whether this rank writes for all."""
        return self.rank == 0

    @property
    def checkpoints_folder(self) -> Path:
        """Return where this run's checkpoints live."""
        return self.folder / "checkpoints"
