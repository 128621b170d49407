import pytest

from lmtrain.composition.execution.device_problems import device_problem, telling_device_problems
from lmtrain.errors import EnvironmentProblem

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
    "ncclRemoteError: A call failed possibly due to a network error": "another rank or the network",
}


@pytest.mark.parametrize(("said", "told"), SAID.items())
def test_a_gpu_s_failure_is_one_line_with_its_fix(said, told):
    problem = device_problem(RuntimeError(said), where="step 7")
    assert problem is not None
    assert problem.exit_code == 3
    assert told in str(problem)
    assert "\n" not in str(problem)


def test_another_failure_is_no_device_s():
    assert device_problem(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), where="") is None


def test_a_failure_before_any_checkpoint_is_told_too_and_ours_stay_as_they_are(tmp_path):
    with pytest.raises(EnvironmentProblem, match="goes on from the beginning"), telling_device_problems(tmp_path):
        raise RuntimeError("CUDA error: unspecified launch failure")
    with pytest.raises(EnvironmentProblem, match="no CUDA GPUs are available, said"), telling_device_problems(tmp_path):
        raise EnvironmentProblem("no CUDA GPUs are available, said by us")
