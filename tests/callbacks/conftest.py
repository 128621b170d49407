from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.callbacks.tiny_run import TinyRun, make_context, write_dataset


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set."""
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder)
    return folder


@pytest.fixture
def make_run(dataset_folder: Path, tmp_path: Path) -> Callable[..., TinyRun]:
    """Make a run in a folder of this test: make_run(steps=4, accumulation_micro_steps=1, name="cat", **plan)."""

    def make(*, name: str = "cat", **settings: Any) -> TinyRun:
        return TinyRun(context=make_context(tmp_path / "runs" / name, dataset_folder, **settings))

    return make
