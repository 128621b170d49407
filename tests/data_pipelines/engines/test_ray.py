import sys

import pytest

from data_pipelines import extras
from data_pipelines.engines.local import LocalEngine
from data_pipelines.engines.ray import RayEngine
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.missing_package import install_command
from tests.data_pipelines.corpus import Planted

STAGES = [UnicodeRepair(), LengthFilter(), ExactDeduplication(num_tasks=2)]
# Enough of Ray for the driver to start; the executor's own use of it is replaced below.
FAKE_RAY = """
import os

def init(address):
    print("connected to", address)
    from datatrove.executor import ray as theirs

    def run(self):
        for rank in self.get_incomplete_ranks():
            self._run_for_rank(rank)

    theirs.RayPipelineExecutor.run = run
"""


@pytest.fixture(autouse=True)
def extra():
    pytest.importorskip("datatrove.executor")
    pytest.importorskip("spacy")


@pytest.fixture
def ray(tmp_path, monkeypatch):
    """Put a module of Ray's name before all others."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "ray.py").write_text(FAKE_RAY)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(extras, "find_spec", lambda name: object())


def test_a_dry_run_writes_the_driver_and_runs_nothing(tmp_path, capsys):
    engine = RayEngine(dry_run=True, address="ray://head:10001", num_tasks=3, max_running_tasks=2, cpus_per_task=2)
    with pytest.raises(SystemExit) as stop:
        list(engine(Planted(), STAGES, folder=tmp_path))
    assert stop.value.code == 0
    (folder,) = tmp_path.iterdir()
    driver = (folder / "ray_driver.py").read_text()
    compile(driver, "ray_driver.py", "exec")
    assert "ray.init(address='ray://head:10001')" in driver
    jobs = ["read_and_clean", "exact_hashes", "exact_duplicates"]
    paths = [f"{folder}/jobs/{job}/executor.pik" for job in jobs]
    assert [line.strip(" ',") for line in driver.splitlines() if "executor.pik" in line] == paths
    said = capsys.readouterr().err
    assert "3 Ray jobs are written and nothing is run" in said
    assert all(path in said for path in paths)
    assert not list(tmp_path.glob("*/pieces/*"))


def test_what_is_written_are_the_executors_of_datatrove(tmp_path):
    import dill

    with pytest.raises(SystemExit):
        list(RayEngine(dry_run=True, num_tasks=3, max_running_tasks=2)(Planted(), STAGES, folder=tmp_path))
    executor = dill.loads(next(tmp_path.glob("*/jobs/read_and_clean/executor.pik")).read_bytes())
    assert type(executor).__name__ == "RayPipelineExecutor"
    assert (executor.tasks, executor.workers, executor.cpus_per_task, executor.mem_per_cpu_gb) == (3, 2, 1, 2.0)


@pytest.mark.slow
def test_the_driver_gives_what_the_local_engine_gives(tmp_path, ray):
    expected = list(LocalEngine()(Planted(), STAGES, folder=tmp_path / "local"))
    assert list(RayEngine(num_tasks=3)(Planted(), STAGES, folder=tmp_path / "a")) == expected
    assert "connected to auto" in next(tmp_path.glob("a/*/ray_driver.log")).read_text()


def test_tasks_that_fail_are_told_with_their_log(tmp_path, ray, monkeypatch):
    (tmp_path / "fake" / "ray.py").write_text("raise ImportError('no cluster')")
    with pytest.raises(EnvironmentProblem, match=r"of read_and_clean did not finish.*same command again"):
        list(RayEngine(num_tasks=2)(Planted(), STAGES, folder=tmp_path / "a"))
    assert "no cluster" in next(tmp_path.glob("a/*/ray_driver.log")).read_text()


def test_without_ray_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "ray" else sys)
    with pytest.raises(EnvironmentProblem) as refusal:
        RayEngine()
    command = install_command("ray", "ray")
    assert str(refusal.value) == f"engine=ray needs ray, which is not installed; install with: {command}"
    RayEngine(dry_run=True)


def test_numbers_that_are_not_positive_are_refused():
    with pytest.raises(ConfigurationError, match=r"engine\.num_tasks=0 must be positive; nearest valid: 1"):
        RayEngine(num_tasks=0)
