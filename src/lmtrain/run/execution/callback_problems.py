"""Failures of Lightning's own callbacks, which an option may name and which know no run of ours, as a line each."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.targets import import_target

PACKAGE: Final = "lightning.pytorch.callbacks."
MOST: Final = 300  # characters of a failure's text
OF_TEARDOWN: Final = "Cannot copy out of meta tensor"


@contextmanager
def unmasked() -> Generator[None]:
    """Raise the failure before that of a teardown.

    After a failure Lightning moves the model to the CPU: without memory yet, it raises its own (2.6.6).
    """
    try:
        yield
    except NotImplementedError as failure:
        if failure.__context__ is None or not str(failure).startswith(OF_TEARDOWN):
            raise
        raise failure.__context__ from None


@contextmanager
def telling_callback_problems(config: RunConfig) -> Generator[None]:
    """Turn the failure of a callback of Lightning's into a line that names it.

    Raises:
        ConfigurationError: In its place.
    """
    try:
        yield
    except LMTRAIN_ERRORS:
        raise
    except Exception as failure:
        keys = _behind(failure, config)
        if not keys:
            raise
        said = " ".join(str(failure).split())[:MOST].rstrip(".") or type(failure).__name__
        raise ConfigurationError(f"{', '.join(keys)} does not go with this run: {said}; leave it out.") from failure


def _behind(failure: BaseException, config: RunConfig) -> list[str]:
    """Return the callbacks of Lightning's a failure comes from: in its frames, or any where the Trainer refuses one."""
    theirs = {node.key: node.target for node in config.callbacks.values() if node.target.startswith(PACKAGE)}
    modules = {*_modules(failure)}
    found = [key for key, target in theirs.items() if modules & _modules_of(target)]
    known = found or (theirs if isinstance(failure, MisconfigurationException) else [])
    return [f"{key}._target_={theirs[key]}" for key in known]


def _modules(failure: BaseException) -> Iterator[str]:
    """Give the modules of the frames that a failure went through."""
    frames = failure.__traceback__
    while frames is not None:
        yield str(frames.tb_frame.f_globals.get("__name__"))
        frames = frames.tb_next


def _modules_of(target: str) -> set[str]:
    """Return the modules of a callback's class and of Lightning's classes above it."""
    found = import_target(target)
    above = found.__mro__ if isinstance(found, type) else ()
    return {each.__module__ for each in above if each.__module__.startswith(PACKAGE)}
