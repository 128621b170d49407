"""A wish for a run's clean stop, left in its folder: it reaches runs on other machines, where no signal does."""

from pathlib import Path

from lmtrain.tracking import atomic_files

NAME = "stop_request"


def ask_to_stop(folder: Path) -> None:
    """Leave the wish.

    Raises:
        EnvironmentProblem: The folder cannot be written.
    """
    atomic_files.write_text(folder / NAME, "the run ends after its step, with a checkpoint\n")


def is_asked_to_stop(folder: Path) -> bool:
    """Tell whether there is one."""
    return (folder / NAME).exists()


def forget_stop(folder: Path) -> None:
    """Take it back: one of an earlier attempt is not meant for a new one."""
    (folder / NAME).unlink(missing_ok=True)
