import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.sweeps.local_runner import LocalRunner


def test_runs_side_by_side_get_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = LocalRunner(parallel=2, num_devices=2, num_gpus=4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [runner.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in (0, 1)] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert runner.environment(1)["CUDA_VISIBLE_DEVICES"] == "6,7"


def test_on_a_cpu_they_share_its_threads_and_one_run_has_all() -> None:
    assert LocalRunner(parallel=1000, num_devices=1, num_gpus=0).environment(3) == {"OMP_NUM_THREADS": "1"}
    assert LocalRunner(parallel=1, num_devices=1, num_gpus=8).environment(0) == {}


def test_more_runs_than_gpus_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"need 6, and this machine has 4; nearest valid: sweep\.parallel=2"):
        LocalRunner(parallel=3, num_devices=2, num_gpus=4)
