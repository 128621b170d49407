"""Stages give the same items on this machine, in jobs, on SLURM and on Ray."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from data_pipelines.engines.cluster import plan_jobs
from data_pipelines.engines.local import LocalEngine, run_tasks
from data_pipelines.engines.ray import RayEngine
from data_pipelines.engines.slurm import SlurmEngine
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from data_pipelines.stages.minhash import MinHashDeduplication
from data_pipelines.stages.quality import C4Quality, FineWebQuality, GopherQuality, GopherRepetition
from data_pipelines.stages.stage import PipelineJob
from tests.data_pipelines.corpus import (
    ALL_JUNK,
    BROKEN,
    EMPTY,
    GOOD,
    JUNK,
    NEAR,
    NUM_PIECES,
    SAME,
    Planted,
    kept,
    reasons,
)

WEB = [UnicodeRepair(), LengthFilter(), GopherQuality(), GopherRepetition(), C4Quality(), FineWebQuality()]
STAGES = [*WEB, ExactDeduplication()]


def run(folder, stages=STAGES, **settings):
    return list(LocalEngine(**settings)(Planted(), stages, folder=folder))


def test_everything_planted_is_dropped_for_its_reason_and_nothing_else(tmp_path):
    items = run(tmp_path)
    assert [item.id for item in items] == [item.id for item in Planted().documents()]
    assert kept(items) == [document.id for document in [*GOOD, *NEAR, *BROKEN]]
    assert reasons(items) == {
        "exact duplicate": len(SAME) + 1,
        "empty": len(EMPTY),
        "not UTF-8 text": 1,
        **dict.fromkeys(JUNK, 1),
    }
    repaired = next(item for item in items if item.id == "broken_1")
    assert repaired.text.endswith("\nThe caf\xe9 was na\xefve.")


@pytest.mark.slow
def test_minhash_runs_as_jobs_and_finds_what_is_planted(tmp_path):
    stages = [*STAGES, MinHashDeduplication()]
    items = run(tmp_path / "many", stages, num_processes=2, piece_characters=20_000)
    assert len(list(tmp_path.glob("many/*/pieces/*.jsonl"))) > 3
    found = reasons(items)
    assert found["near duplicate"] == len(NEAR)
    assert sum(found.values()) == len(NEAR) + len(SAME) + 1 + len(EMPTY) + 1 + len(ALL_JUNK)
    assert run(tmp_path / "one", stages, num_processes=1) == items


@dataclass(frozen=True)
class Touch:
    folder: Path
    failing: int = -1

    def __call__(self, task):
        (self.folder / f"task_{task}").write_text(str(os.getpid()))
        if task == self.failing:
            raise OSError("no room")


@pytest.fixture(autouse=True)
def extra():
    pytest.importorskip("datatrove.executor")
    pytest.importorskip("spacy")


@pytest.mark.parametrize("num_processes", [0, 2])
def test_tasks_that_failed_are_run_again_and_the_others_are_not(tmp_path, num_processes):
    with pytest.raises(OSError, match="no room"):
        run_tasks(PipelineJob("a", 3, Touch(tmp_path, failing=1)), tmp_path / "job", num_processes=num_processes)
    (tmp_path / "task_0").unlink()
    run_tasks(PipelineJob("a", 3, Touch(tmp_path)), tmp_path / "job", num_processes=num_processes)
    assert not (tmp_path / "task_0").exists()
    assert (tmp_path / "task_2").exists()


FEW = [UnicodeRepair(), LengthFilter(), ExactDeduplication(num_tasks=2)]


def run_cluster_engine(plan):
    for job in plan.jobs:
        for task in reversed(range(job.num_tasks)):
            job.run(task)
    return list(plan.items())


@pytest.mark.parametrize("num_tasks", [1, 3, NUM_PIECES, 1000])
@pytest.mark.parametrize("stages", [FEW, [], [ExactDeduplication(num_tasks=5)]], ids=["all", "none", "exact"])
def test_jobs_give_what_one_stream_gives_however_many_tasks_read(tmp_path, num_tasks, stages):
    expected = list(LocalEngine()(Planted(), stages, folder=tmp_path / "local"))
    plan = plan_jobs(Planted(), stages, tmp_path / "cluster", num_tasks=num_tasks)
    assert plan.jobs[0].num_tasks == min(num_tasks, NUM_PIECES)
    assert run_cluster_engine(plan) == expected


# A queue that runs each array at once, where it is submitted, task after task, and forgets it.
SBATCH = """#!{python}
import os, subprocess, sys
script = sys.argv[-1]
text = open(script).read()
with open("{folder}/submitted", "a") as log:
    print(*sys.argv[1:-1], "|", *[line for line in text.splitlines() if "#SBATCH" in line], sep=" ", file=log)
with open("{folder}/last_" + text.split("--job-name=")[1].split()[0], "w") as copy:
    copy.write(text)
directives = dict(line[10:].partition("=")[::2] for line in text.splitlines() if line.startswith("#SBATCH --"))
first, _, last = directives["array"].split("%")[0].partition("-")
offset = next((word.split("RUN_OFFSET=")[1] for word in sys.argv if "RUN_OFFSET=" in word), "0")
if "merge_stats" not in text:
    for task in range(int(first), int(last) + 1):
        environment = {{**os.environ, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_NODELIST": "here", "RUN_OFFSET": offset}}
        subprocess.run(["bash", script], env=environment, stdout=open("{folder}/log", "a"), stderr=subprocess.STDOUT)
print("Submitted batch job", 4000 + len(open("{folder}/submitted").readlines()))
"""
LAUNCHER = "datatrove.tools.launch_pickled_pipeline"
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 == -n ]] && shift; shift; done
exec "$@"
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put commands of SLURM's names on PATH that run everything here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    commands = {
        "sbatch": SBATCH.format(python=sys.executable, folder=tmp_path),
        "srun": SRUN,
        "squeue": "#!/bin/bash\nexit 1\n",
        "scontrol": "#!/bin/bash\necho here\n",
        "launch_pickled_pipeline": f'#!/bin/bash\nexec {sys.executable} -m {LAUNCHER} "$@"\n',
    }
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    return tmp_path


@pytest.mark.slow
def test_on_a_queue_it_gives_what_the_local_engine_gives(slurm):
    expected = list(LocalEngine()(Planted(), FEW, folder=slurm / "local"))
    engine = SlurmEngine(partition="cpu", num_tasks=3, poll_seconds=0.01, setup="true")
    assert list(engine(Planted(), FEW, folder=slurm / "a")) == expected
    submitted = [line for line in (slurm / "submitted").read_text().splitlines() if "RUN_OFFSET" in line]
    names = [line.split("job-name=")[1].split()[0] for line in submitted]
    assert names == ["lmtrain_read_and_clean", "lmtrain_exact_hashes", "lmtrain_exact_duplicates"]
    assert "--dependency" not in submitted[0]
    assert all("--dependency=afterok:40" in line for line in submitted[1:])
    assert list(engine(Planted(), FEW, folder=slurm / "a")) == expected
    assert len((slurm / "submitted").read_text().splitlines()) == 6, "finished jobs are not submitted again"


@pytest.fixture
def ray(monkeypatch):
    """Put a module of Ray's name in its place, whose tasks run here."""
    theirs = pytest.importorskip("datatrove.executor.ray")
    module = ModuleType("ray")
    module.init = lambda address, **_: print("connected to", address)
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())

    def run(self):
        for rank in self.get_incomplete_ranks():
            self._run_for_rank(rank)

    monkeypatch.setattr(theirs.RayPipelineExecutor, "run", run)


@pytest.mark.slow
def test_on_ray_it_gives_what_the_local_engine_gives(tmp_path, ray, capsys):
    expected = list(LocalEngine()(Planted(), FEW, folder=tmp_path / "local"))
    assert list(RayEngine(num_tasks=3)(Planted(), FEW, folder=tmp_path / "a")) == expected
    assert capsys.readouterr().out == "connected to auto\n"
