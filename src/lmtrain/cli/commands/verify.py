"""`lmtrain verify FOLDER ...`: read prepared data again, by the pipelines' code, which the library never imports."""

import importlib


def verify(words: list[str], *, program: str = "lmtrain verify") -> int:
    """Hold every byte against its manifest; the exit code is 1 where something is wrong."""
    return importlib.import_module("data_pipelines.verify").verify(words, program=program)
