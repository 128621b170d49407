"""The packages of the extra `data`, asked for before any work, and kept from printing next to our lines."""

from lmtrain.missing_package import require_package


def require_datatrove(setting: str) -> None:
    """Refuse a setting without datatrove and the packages that its filters import."""
    require_package(setting, "datatrove", "spacy", "xxhash", extra="data")


def silence_datatrove() -> None:
    """Keep datatrove's log out of this process's output; its tasks' output is in their jobs' folders."""
    from loguru import logger  # pyright: ignore[reportMissingImports]  # an extra

    logger.disable("datatrove")
