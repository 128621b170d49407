"""Our innermost loop where its parts of Lightning were tested, Lightning's own elsewhere."""

import importlib
import logging
from typing import Final

import lightning
import lightning.pytorch as pl

TESTED: Final = "2.6."  # tests/training/loop/test_step_loop.py compares both loops with each of these
LOOP: Final = "lmtrain.training.loop.step_loop"
_LOG = logging.getLogger(__name__)


def use_step_loop(trainer: pl.Trainer) -> bool:
    """Give a Trainer our loop in place of its own, before it has run; return whether it did.

    Another version of Lightning keeps its own loop: the same training, with more Python a step.
    """
    if not lightning.__version__.startswith(TESTED):
        _LOG.warning(
            "Lightning %s runs its own training loop: ours was tested with %sx, and saves Python in a step.",
            lightning.__version__,
            TESTED,
        )
        return False
    # Not above: it imports private parts of Lightning, perhaps absent from another version.
    trainer.fit_loop.epoch_loop = importlib.import_module(LOOP).StepLoop(trainer)
    return True
