import resource

from lmtrain.doctor.limits import NEEDED_SHARED_BYTES, cores, open_files, scheduler, shared_memory


def test_shared_memory_is_held_against_the_processes_that_use_it(tmp_path):
    assert shared_memory(num_processes=1, free=NEEDED_SHARED_BYTES).state == "ok"
    assert shared_memory(num_processes=8, free=NEEDED_SHARED_BYTES).state == "warn"
    small = shared_memory(num_processes=32, free=NEEDED_SHARED_BYTES)
    assert small.state == "bad"
    assert "--shm-size=2.1GB" in small.fix
    assert shared_memory(num_processes=8, folder=tmp_path / "none").state == "ok"


def test_open_files_are_few_or_too_few():
    states = [open_files(limit).state for limit in (resource.RLIM_INFINITY, 65_536, 1024, 64)]
    assert states == ["ok", "ok", "warn", "bad"]


def test_the_scheduler_is_named(tmp_path):
    assert "SLURM job 42" in scheduler({"SLURM_JOB_ID": "42"}).found
    assert "terminationGracePeriodSeconds" in scheduler({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).fix
    assert "Kubernetes" in scheduler({}, account=tmp_path).found
    assert scheduler({}, account=tmp_path / "none").state == "ok"


def test_a_rank_wants_a_core():
    assert cores(1).state == "ok"
    assert cores(100_000).state == "warn"
