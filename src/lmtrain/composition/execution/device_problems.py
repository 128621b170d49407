"""A GPU's failures as CUDA, NCCL and torch word them, each as one line with its fix."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lmtrain.errors import LMTRAIN_ERRORS, EnvironmentProblem
from lmtrain.training.checkpointing.checkpoints import list_checkpoints

# The first that a failure's text holds counts; in small letters. `{where}` is what the run goes on from.
PROBLEMS: Final = (
    (
        ("duplicate gpu detected",),
        "two ranks were given one GPU: start no more ranks on a node than it has GPUs, with one each visible.",
    ),
    (
        ("all cuda-capable devices are busy", "exclusive-process", "exclusive process", "cudaerrordevicesunavailable"),
        "the GPU is held by another process alone (nvidia-smi shows it): wait for it, or choose another by "
        "CUDA_VISIBLE_DEVICES.",
    ),
    (
        ("driver version is insufficient", "nvidia driver on your system is too old", "unsupported ptx version"),
        "the GPU's driver is too old for this torch: update it, or install a torch built for its CUDA (nvidia-smi "
        "shows both).",
    ),
    (
        ("no kernel image is available", "not compatible with the current pytorch", "too old to be supported by"),
        "the GPU is too old for this torch or this kernel: install one built for it, or run without "
        "that kernel or without compilation.",
    ),
    (
        (
            "fallen off the bus",
            "uncorrectable ecc error",
            "unspecified launch failure",
            "illegal memory access",
            "hardware stack error",
            "cuda error: unknown error",
            "device-side assert triggered",
            "gpu is lost",
            "nvml_error_gpu_is_lost",
            "no cuda-capable device is detected",
            "no cuda gpus are available",
        ),
        "the GPU failed or is gone (dmesg and nvidia-smi tell why); the same command goes on from {where}.",
    ),
    (
        ("remote process exited or there was a network error", "ncclremoteerror", "ncclsystemerror"),
        "another rank or the network between GPUs failed; the same command goes on from {where}.",
    ),
)  # fmt: skip


@contextmanager
def telling_device_problems(folder: Path) -> Generator[None]:
    """Turn a GPU's failure into one line with the last checkpoint of a run's folder.

    Raises: EnvironmentProblem in its place.
    """
    try:
        yield
    except LMTRAIN_ERRORS:
        raise
    except RuntimeError as failure:
        steps = [each.step for each in list_checkpoints(folder / "checkpoints")]
        problem = device_problem(failure, where=f"the checkpoint of step {steps[-1]}" if steps else "the beginning")
        if problem is None:
            raise
        raise problem from failure


def device_problem(failure: BaseException, *, where: str) -> EnvironmentProblem | None:
    """Return a GPU's failure as one line, None for any other; `where` is the last checkpoint, in words."""
    said = str(failure).strip()
    text = said.lower()
    for words, line in PROBLEMS:
        if word := next((word for word in words if word in text), None):
            first = next((each.strip() for each in said.splitlines() if word in each.lower()), word)
            return EnvironmentProblem(f"{line.format(where=where)} CUDA says: {first[:200].rstrip('.')}.")
    return None
