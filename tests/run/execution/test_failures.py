"""Failures of callbacks, GPUs and connections are one line with its fix."""

from collections.abc import Callable

import pytest

from lmtrain.errors import ConfigurationError, ConnectionLost
from lmtrain.run.execution.failures import device_problem
from lmtrain.run.execution.run import execute
from lmtrain.run.stored_runs.job import Job


@pytest.mark.parametrize("name", ["OnExceptionCheckpoint, dirpath: x", "DeviceStatsMonitor"])
def test_a_callback_that_lightning_refuses_is_one_line(tiny_job: Callable[..., Job], name: str) -> None:
    node = f"+callbacks.theirs={{_target_: lightning.pytorch.callbacks.{name}}}"
    with pytest.raises(ConfigurationError, match=r"^Lightning refuses the run: .*Trainer"):
        execute(tiny_job("budget.steps=1", node))


# As CUDA 13's runtime, NCCL 2.28, NVML and torch 2.13 word them.
SAID = [
    "CUDA error: no kernel image is available for execution on the device",
    "The NVIDIA driver on your system is too old (found version 11040).",
    "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
    "CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA",
    "NVMLError_GpuIsLost: GPU is lost",
]
BROKEN = [
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:4321",
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [10.0.0.2]:4321: Connection reset by peer",
    "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    "ncclRemoteError: A call failed possibly due to a network error",
]


@pytest.mark.parametrize("said", SAID)
def test_a_gpu_s_failure_is_one_line_with_its_fix(said):
    problem = device_problem(RuntimeError(said), where="step 7")
    assert problem is not None
    assert problem.exit_code == 3
    assert "resumes from step 7" in str(problem)
    assert "\n" not in str(problem)


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_connection_is_one_line_and_no_cause_of_its_own(said):
    problem = device_problem(RuntimeError(f"{said}\nException raised from"), where="step 7")
    assert isinstance(problem, ConnectionLost)
    assert problem.exit_code == 1
    assert "another rank or the network failed" in str(problem)
    assert "resumes from step 7" in str(problem)
