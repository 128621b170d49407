from pathlib import Path

import pytest

from lmtrain.errors import EnvironmentProblem
from lmtrain.run.builders.unused_gpu import require_no_unused_gpu


def machine(folder: Path, *, with_gpu: bool = True) -> dict[str, Path]:
    """Return the paths of a machine with the driver's module, and perhaps a device."""
    for name in ("nvidiactl", "nvidia-uvm", *["nvidia0"] * with_gpu):
        (folder / name).touch()
    version = folder / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\n")
    return {"devices": folder, "driver": version}


@pytest.mark.parametrize(
    ("cuda", "cause"),
    [
        ("13.0", "torch is built for CUDA 13.0, and the driver is 470.57.02: update it"),
        (None, "this torch is built without CUDA: install one with it"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_refused_with_the_cause_and_the_word_for_the_cpu(
    tmp_path: Path, cuda: str | None, cause: str
) -> None:
    with pytest.raises(EnvironmentProblem, match=r"nvidia0 is an NVIDIA GPU .* trainer\.accelerator=cpu\.") as refused:
        require_no_unused_gpu({}, **machine(tmp_path), cuda=cuda)
    assert cause in str(refused.value)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_gpu_that_its_owner_hides_is_none(tmp_path: Path, hidden: str) -> None:
    require_no_unused_gpu({"CUDA_VISIBLE_DEVICES": hidden}, **machine(tmp_path), cuda="13.0")


def test_a_driver_without_a_device_is_no_gpu(tmp_path: Path) -> None:
    require_no_unused_gpu({}, **machine(tmp_path, with_gpu=False), cuda="13.0")
