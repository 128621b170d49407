"""Failures of GPUs and connections as CUDA, NCCL, gloo and torch word them, each as one line with its fix."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lmtrain.errors import LMTRAIN_ERRORS, ConnectionLost, EnvironmentProblem
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
        ("illegal memory access", "misaligned address", "illegal instruction was encountered"),
        "a kernel went wrong, or the GPU under it (dmesg and nvidia-smi tell): CUDA_LAUNCH_BLOCKING=1 names the "
        "kernel, and without compilation there are none of the compiler's; the same command goes on from {where}.",
    ),
    (
        ("invalid device ordinal",),
        "a rank was given a GPU that is not there: set trainer.devices to no more than `nvidia-smi -L` and "
        "CUDA_VISIBLE_DEVICES show.",
    ),
)  # fmt: skip
LOST: Final = (
    "remote process exited or there was a network error",
    "ncclremoteerror",
    "ncclsystemerror",
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "did the remote server shutdown or crash",
    "timed out waiting",  # gloo: longer than strategy.timeout_seconds
)
OF_LOST: Final = "another rank or the network to it failed; the same command goes on from {where}."


@contextmanager
def telling_device_problems(folder: Path) -> Generator[None]:
    """Turn the failure of a GPU, or of a connection, into one line with the last checkpoint of a run's folder.

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
    """Return a failure of these as one line, None for any other; `where` is the last checkpoint, in words."""
    said = str(failure).strip()
    for words, line in PROBLEMS:
        if first := _line_with(words, said):
            return EnvironmentProblem(f"{line.format(where=where)} CUDA says: {first}.")
    if first := _line_with(LOST, said):
        return ConnectionLost(f"{OF_LOST.format(where=where)} It says: {first}.")
    return None


def _line_with(words: tuple[str, ...], said: str) -> str | None:
    """Return the first line with one of these words, at most 200 characters of it."""
    word = next((word for word in words if word in said.lower()), None)
    if word is None:
        return None
    return next((each.strip() for each in said.splitlines() if word in each.lower()), word)[:200].rstrip(".")
