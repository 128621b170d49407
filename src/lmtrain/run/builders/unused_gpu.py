"""An NVIDIA GPU of this machine that torch cannot use: a run on the CPU in its place would be a surprise of days."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from lmtrain.errors import EnvironmentProblem

DEVICES: Final = Path("/dev")
DRIVER: Final = Path("/proc/driver/nvidia/version")
HIDES: Final = "CUDA_VISIBLE_DEVICES"


def require_no_unused_gpu(
    environment: Mapping[str, str],
    *,
    devices: Path = DEVICES,
    driver: Path = DRIVER,
    cuda: str | None = torch.version.cuda,
) -> None:
    """Refuse a machine with a GPU where torch finds none, unless its owner hides it; `cuda` is torch's (None: without).

    Raises:
        EnvironmentProblem: Naming the cause, and the word to train on the CPU all the same.
    """
    found = sorted(devices.glob("nvidia[0-9]*"))
    if not found or environment.get(HIDES, "0").strip() in ("", "-1"):
        return
    if cuda is None:
        cause = "this torch is built without CUDA: install one with it"
    else:
        cause = (
            f"torch is built for CUDA {cuda}, and the driver is {_version(driver)}: update it, or take an older torch"
        )
    raise EnvironmentProblem(
        f"{found[0]} is an NVIDIA GPU and torch cannot use it; {cause} (`lmtrain doctor` says more). To train on the "
        "CPU all the same: trainer.accelerator=cpu."
    )


def _version(driver: Path) -> str:
    """Return the version from the driver's own line, "NVRM version: NVIDIA UNIX x86_64 470.57.02 ..."."""
    try:
        words = driver.read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return "unknown"
    return next((word for word in words if word.replace(".", "").isdigit() and "." in word), "unknown")
