"""Failures of callbacks, GPUs and connections are one line with its fix."""

from collections.abc import Callable

import pytest

from lmtrain.errors import ConfigurationError, ConnectionLost, EnvironmentProblem
from lmtrain.run.execution.failures import device_problem, unmasked, wording_device_failures
from lmtrain.run.execution.run import execute
from lmtrain.run.stored_runs.job import Job


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        ("OnExceptionCheckpoint, dirpath: x", "Trainer was configured with `enable_checkpointing=False`"),  # at once
        ("DeviceStatsMonitor", r"Cannot use `DeviceStatsMonitor` callback with `Trainer\(logger=False\)`"),  # masked
        ("ThroughputMonitor, batch_size_fn: null", "'NoneType' object is not callable"),  # in the run
    ],
)
def test_a_callback_of_lightnings_that_does_not_go_with_a_run_is_named(
    tiny_job: Callable[..., Job], callback: str, said: str
) -> None:
    node = f"+callbacks.theirs={{_target_: lightning.pytorch.callbacks.{callback}}}"
    name = callback.partition(",")[0]
    with pytest.raises(
        ConfigurationError,
        match=rf"^callbacks\.theirs\._target_=lightning\.pytorch\.callbacks\.{name} does not go with this run: {said}",
    ):
        execute(tiny_job("budget.steps=1", node))


def fail_in_teardown() -> None:
    try:
        raise ConfigurationError("first")
    finally:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")


def test_the_failure_before_a_teardowns_own_is_raised() -> None:
    with pytest.raises(ConfigurationError, match="first"), unmasked():
        fail_in_teardown()
    with pytest.raises(NotImplementedError, match="alone"), unmasked():
        raise NotImplementedError("alone")


# As CUDA 13's runtime, NCCL 2.28, NVML and torch 2.13 word them.
SAID = {
    "CUDA error: no kernel image is available for execution on the device": "too old for this torch",
    "The NVIDIA driver on your system is too old (found version 11040).": "driver is too old",
    "CUDA error: CUDA driver version is insufficient for CUDA runtime version": "driver is too old",
    "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000": "two ranks were given one",
    "CUDA error: all CUDA-capable devices are busy or unavailable\nSearch for": "held by another",
    "CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA": "resumes from step 7",
    "CUDA error: uncorrectable ECC error encountered": "resumes from step 7",
    "NVMLError_GpuIsLost: GPU is lost": "resumes from step 7",
    "CUDA error: misaligned address\nCUDA kernel errors might be": "CUDA_LAUNCH_BLOCKING=1",
    "CUDA error: an illegal instruction was encountered": "CUDA_LAUNCH_BLOCKING=1",
    "CUDA error: an illegal memory access was encountered": "resumes from step 7",
    "CUDA error: invalid device ordinal\nGPU device may be out of range": "set trainer.devices to at most",
}
BROKEN = [
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:4321",
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [10.0.0.2]:4321: Connection reset by peer",
    "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    "ncclRemoteError: A call failed possibly due to a network error",
]


@pytest.mark.parametrize(("said", "told"), SAID.items())
def test_a_gpu_s_failure_is_one_line_with_its_fix(said, told):
    problem = device_problem(RuntimeError(said), where="step 7")
    assert problem is not None
    assert problem.exit_code == 3
    assert told in str(problem)
    assert "\n" not in str(problem)


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_connection_is_one_line_and_no_cause_of_its_own(said):
    problem = device_problem(RuntimeError(f"{said}\nException raised from"), where="step 7")
    assert isinstance(problem, ConnectionLost)
    assert problem.exit_code == 1
    assert "another rank or the network failed" in str(problem)
    assert "resumes from step 7" in str(problem)


def test_another_failure_is_no_device_s():
    assert device_problem(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), where="") is None


def test_a_failure_before_any_checkpoint_is_told_too_and_ours_stay_as_they_are(tmp_path):
    with pytest.raises(EnvironmentProblem, match="resumes from the beginning"), wording_device_failures(tmp_path):
        raise RuntimeError("CUDA error: unspecified launch failure")
    with pytest.raises(EnvironmentProblem, match="no CUDA GPUs are available, said"), wording_device_failures(tmp_path):
        raise EnvironmentProblem("no CUDA GPUs are available, said by us")
