import pytest

from lmtrain.errors import ConnectionLost, EnvironmentProblem
from lmtrain.run.execution.device_problems import device_problem, telling_device_problems

# As CUDA 13's runtime, NCCL 2.28, NVML and torch 2.13 word them.
SAID = {
    "CUDA error: no kernel image is available for execution on the device": "too old for this torch",
    "The NVIDIA driver on your system is too old (found version 11040).": "driver is too old",
    "CUDA error: CUDA driver version is insufficient for CUDA runtime version": "driver is too old",
    "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000": "two ranks were given one",
    "CUDA error: all CUDA-capable devices are busy or unavailable\nSearch for": "held by another",
    "CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA": "goes on from step 7",
    "CUDA error: uncorrectable ECC error encountered": "goes on from step 7",
    "NVMLError_GpuIsLost: GPU is lost": "goes on from step 7",
    "CUDA error: misaligned address\nCUDA kernel errors might be": "CUDA_LAUNCH_BLOCKING=1",
    "CUDA error: an illegal instruction was encountered": "CUDA_LAUNCH_BLOCKING=1",
    "CUDA error: an illegal memory access was encountered": "goes on from step 7",
    "CUDA error: invalid device ordinal\nGPU device may be out of range": "set trainer.devices to no more",
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
    assert str(problem) == (
        f"another rank or the network to it failed; the same command goes on from step 7. It says: {said.rstrip('.')}."
    )


def test_another_failure_is_no_device_s():
    assert device_problem(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), where="") is None


def test_a_failure_before_any_checkpoint_is_told_too_and_ours_stay_as_they_are(tmp_path):
    with pytest.raises(EnvironmentProblem, match="goes on from the beginning"), telling_device_problems(tmp_path):
        raise RuntimeError("CUDA error: unspecified launch failure")
    with pytest.raises(EnvironmentProblem, match="no CUDA GPUs are available, said"), telling_device_problems(tmp_path):
        raise EnvironmentProblem("no CUDA GPUs are available, said by us")
