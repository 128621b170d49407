"""Failures of Lightning, GPUs and connections, each as one line with its fix."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, ConnectionLost, EnvironmentProblem
from lmtrain.run.planning.machine_limits import is_out_of_memory
from lmtrain.training.checkpointing.checkpoints import list_checkpoints

OF_TEARDOWN: Final = "Cannot copy out of meta tensor"
# Words of CUDA, NCCL, NVML and torch in small letters.
DEVICE: Final = (
    *("cuda error", "cuda driver", "nvidia driver", "no cuda gpus are available", "duplicate gpu detected"),
    *("gpu is lost", "nvmlerror"),
)
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
def in_one_line(folder: Path) -> Generator[None]:
    """Turn what Lightning refuses, and the failure of a device or a connection, into one line.

    The last checkpoint is that of a run's folder.
    """
    try:
        yield
    except LMTRAIN_ERRORS:
        raise
    except MisconfigurationException as failure:
        said = " ".join(str(failure).split())
        raise ConfigurationError(f"Lightning refuses the run: {said} Leave out the callback it names.") from failure
    except RuntimeError as failure:
        if is_out_of_memory(failure):
            raise
        steps = [each.step for each in list_checkpoints(folder / "checkpoints")]
        problem = device_problem(failure, where=f"the checkpoint of step {steps[-1]}" if steps else "the beginning")
        if problem is None:
            raise
        raise problem from failure


def device_problem(failure: BaseException, *, where: str) -> EnvironmentProblem | None:
    """Return a failure of a device or a connection as one line, None for any other."""
    lines = [line.strip()[:200].rstrip(".") for line in str(failure).splitlines()]
    if first := next((line for line in lines if any(word in line.lower() for word in LOST)), None):
        return ConnectionLost(f"another rank or the network failed; the same command resumes from {where}: {first}.")
    if first := next((line for line in lines if any(word in line.lower() for word in DEVICE)), None):
        return EnvironmentProblem(
            f"the GPU or its driver failed: {first}. Check nvidia-smi and dmesg, or set CUDA_LAUNCH_BLOCKING=1; "
            f"the same command resumes from {where}."
        )
    return None
