"""torchtitan: named so that its absence has a reason in every table."""

from benchmarks.train_step_loops.task import Task, Unavailable
from benchmarks.train_step_loops.turns import Turns

GIVEN = "nothing: see its reason"


def run(task: Task, turns: Turns) -> None:
    """Say why it takes no part.

    Raises:
        Unavailable: Always.
    """
    del turns
    task.checkout("torchtitan")
    if task.device == "cpu":
        raise Unavailable("its device falls back to cuda, so that its Trainer cannot run on a CPU")
    raise Unavailable("its main branch asks for a nightly torch; this loop has not been fitted to one")
