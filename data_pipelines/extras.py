"""Optional packages: asked for by name before any work, and kept from talking over ours."""

from importlib.util import find_spec

from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import install_command

DATA_EXTRA = ("datatrove", "spacy", "xxhash")


def require_extra(setting: str, *, packages: tuple[str, ...] = DATA_EXTRA, extra: str = "data") -> None:
    """Refuse a setting with missing packages, with the command to install them."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        are = "are" if len(missing) > 1 else "is"
        msg = f"{setting} needs {', '.join(missing)}, which {are} not installed"
        raise EnvironmentProblem(f"{msg}; install with: {install_command(extra, *missing)}")


def silence_datatrove() -> None:
    """Keep datatrove's log out of this process's output; its tasks' output is in their jobs' folders."""
    from loguru import logger  # pyright: ignore[reportMissingImports]  # an extra

    logger.disable("datatrove")
