"""Failures of Lightning's callbacks, GPUs and connections, each as one line with its fix."""

import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, ConnectionLost, EnvironmentProblem
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.targets import import_target
from lmtrain.training.checkpointing.checkpoints import list_checkpoints

CALLBACKS: Final = "lightning.pytorch.callbacks."
MOST: Final = 300  # characters of a failure's text
OF_TEARDOWN: Final = "Cannot copy out of meta tensor"
# Words of CUDA, NCCL and torch in small letters -> the line; the first match counts. `{where}` is the last checkpoint.
DEVICE_FAILURES: Final = {
    ("duplicate gpu detected",): (
        "two ranks were given one GPU: start no more ranks on a node than it has GPUs, with one visible to each."
    ),
    ("all cuda-capable devices are busy", "exclusive-process", "exclusive process", "cudaerrordevicesunavailable"): (
        "the GPU is held by another process (nvidia-smi shows it): wait for it, or choose another by "
        "CUDA_VISIBLE_DEVICES."
    ),
    ("driver version is insufficient", "driver on your system is too old", "unsupported ptx version"): (
        "the GPU's driver is too old for this torch: update it, or install a torch built for its CUDA."
    ),
    ("no kernel image is available", "not compatible with the current pytorch", "too old to be supported by"): (
        "the GPU is too old for this torch or this kernel: install one built for it, or choose another kernel."
    ),
    (
        *("fallen off the bus", "uncorrectable ecc error", "unspecified launch failure", "hardware stack error"),
        *("cuda error: unknown error", "device-side assert triggered", "gpu is lost", "nvml_error_gpu_is_lost"),
        *("no cuda-capable device is detected", "no cuda gpus are available"),
    ): "the GPU failed or is gone (check dmesg and nvidia-smi); the same command resumes from {where}.",
    ("illegal memory access", "misaligned address", "illegal instruction was encountered"): (
        "a CUDA kernel or the GPU failed (check dmesg and nvidia-smi); CUDA_LAUNCH_BLOCKING=1 names the kernel, and "
        "compile=none rules out compiled kernels; the same command resumes from {where}."
    ),
    ("invalid device ordinal",): (
        "a rank was given a GPU that is not there: set trainer.devices to at most what `nvidia-smi -L` and "
        "CUDA_VISIBLE_DEVICES show."
    ),
}
LOST: Final = (
    *("remote process exited or there was a network error", "ncclremoteerror", "ncclsystemerror", "broken pipe"),
    *("connection closed by peer", "connection reset by peer", "did the remote server shutdown or crash"),
    "timed out waiting",  # gloo: longer than strategy.timeout_seconds
)


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
def naming_callbacks(config: RunConfig) -> Generator[None]:
    """Turn the failure of a callback of Lightning's into a line that names it.

    Raises:
        ConfigurationError: In its place.
    """
    try:
        yield
    except LMTRAIN_ERRORS:
        raise
    except Exception as failure:
        keys = _failed_callbacks(failure, config)
        if not keys:
            raise
        said = " ".join(str(failure).split())[:MOST].rstrip(".") or type(failure).__name__
        raise ConfigurationError(f"{', '.join(keys)} does not go with this run: {said}; leave it out.") from failure


def _failed_callbacks(failure: BaseException, config: RunConfig) -> list[str]:
    """Return Lightning's callbacks in a failure's frames, or all of them where the Trainer refuses one."""
    theirs = {node.key: node.target for node in config.callbacks.values() if node.target.startswith(CALLBACKS)}
    modules = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(failure.__traceback__)}

    def is_in_frames(target: str) -> bool:
        found = import_target(target)
        above = found.__mro__ if isinstance(found, type) else ()
        return any(each.__module__ in modules and each.__module__.startswith(CALLBACKS) for each in above)

    found = [key for key, target in theirs.items() if is_in_frames(target)]
    known = found or (theirs if isinstance(failure, MisconfigurationException) else [])
    return [f"{key}._target_={theirs[key]}" for key in known]


@contextmanager
def wording_device_failures(folder: Path) -> Generator[None]:
    """Turn the failure of a GPU, or of a connection, into one line with the last checkpoint of a run's folder.

    Raises:
        EnvironmentProblem: In its place.
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
    """Return a failure of a device or a connection as one line, None for any other."""
    said = str(failure).strip()
    for words, line in DEVICE_FAILURES.items():
        if first := _line_with(words, said):
            return EnvironmentProblem(f"{line.format(where=where)} CUDA says: {first}.")
    if first := _line_with(LOST, said):
        return ConnectionLost(f"another rank or the network failed; the same command resumes from {where}: {first}.")
    return None


def _line_with(words: tuple[str, ...], said: str) -> str | None:
    """Return the first line with one of these words, at most 200 characters of it."""
    lines = [line.strip() for line in said.splitlines() if any(word in line.lower() for word in words)]
    return lines[0][:200].rstrip(".") if lines else None
