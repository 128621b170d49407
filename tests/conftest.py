"""What every test starts from: one thread, no hub, no leftovers of another launch."""

import gc
import importlib.util
import logging
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from lmtrain.tracking.redaction import REMEMBERED
from tests.no_wait import leave_files_to_the_kernel

CACHE = Path(__file__).parents[1] / ".cache"
# Set before torch, numpy or a tokenizer is imported; a person's own values win.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# As in the Makefile, for those who call pytest themselves: nothing is written outside the project.
os.environ.setdefault("HF_HOME", str(CACHE / "huggingface"))
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(CACHE / "hypothesis"))
os.environ.setdefault("MPLCONFIGDIR", str(CACHE / "matplotlib"))
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE / "inductor"))
os.environ["XDG_STATE_HOME"] = str(CACHE / "state")

# A million objects of imports and items stay to the end: looking for garbage among them took 15 of the 35 seconds of
# collecting, and 0.8 at each run that settles its own.
gc.disable()
leave_files_to_the_kernel()
settings.register_profile("shared machine", deadline=None)  # how long one example takes is up to what else runs
settings.load_profile("shared machine")

# What launchers set for a rank: a test that inherits or leaves one of these would train as part of another job.
RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
)
for _name in RANK_VARIABLES:
    os.environ.pop(_name, None)

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first, and skip what this machine has no device or browser for."""
    _longest_files_first(items)
    marked = {marker.name for item in items for marker in item.iter_markers()}
    missing = {
        "gpu": "no CUDA device" if "gpu" in marked and not _has_cuda() else "",
        "browser": "no Chromium on the PATH" if not any(map(shutil.which, BROWSERS)) else "",
    }
    for item in items:
        for name, reason in missing.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def _longest_files_first(items: list[pytest.Item]) -> None:
    """Sort files by their marked tests, so that none is left alone with a long one at the end."""
    seconds = Counter[Path]()
    for item in items:
        marks = {marker.name for marker in item.iter_markers()}
        seconds[item.path] += 15 * bool(marks & {"distributed", "faults"}) or 5 * ("slow" in marks)
    items.sort(key=lambda item: -seconds[item.path])


def pytest_collection_finish() -> None:
    """Look for garbage in what the tests make, and no more in what they stand on."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _tests_begin_alike() -> None:
    """Start every test from the same random numbers, of whichever library is loaded, and with torch's own products."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("highest")  # a training in this process sets its own, and this too
        torch.use_deterministic_algorithms(False)
    if rank_zero := sys.modules.get("lightning_utilities.core.rank_zero"):
        rank_zero.rank_zero_only.rank = 0  # kept from the variables of a rank, where a test set them


@pytest.fixture(autouse=True)
def _environment_is_left_as_found() -> Iterator[None]:
    """Fail the test that leaves a rank's variables behind, rather than the next one; forget a config's secrets."""
    yield
    os.environ.pop(REMEMBERED, None)
    leaked = [name for name in RANK_VARIABLES if os.environ.pop(name, None) is not None]
    assert not leaked, f"left behind in the environment: {', '.join(leaked)}"


@pytest.fixture(autouse=True)
def _loggers_are_heard(caplog: pytest.LogCaptureFixture) -> None:
    """Switch our loggers on again: a library's `logging.config` switches off all that it does not name."""
    del caplog
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("lmtrain") and isinstance(logger, logging.Logger):
            logger.disabled = False


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def let_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Make the clock that a run reads go on by so many seconds at once; nothing waits for them.

    Between these it goes on by a tenth of a millisecond a reading, however busy the machine is.
    """
    passed = [time.monotonic()]

    def read() -> float:
        passed[0] += 1e-4
        return passed[0]

    monkeypatch.setattr(time, "monotonic", read)

    def let_pass(seconds: float) -> None:
        passed[0] += seconds

    return let_pass
