import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmtrain.cli.commands.launch import launch
from lmtrain.errors import EXIT_REQUEUE, EXIT_TERMINATED
from tests import tiny
from tests.launch import slurm_cluster

REASON = slurm_cluster.why_not()
ON_SLURM = [pytest.mark.external, pytest.mark.distributed, pytest.mark.skipif(REASON is not None, reason=REASON or "")]
WORDS = ["trainer.accelerator=cpu", "callbacks.text_samples=null", "callbacks.validation=null"]


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with slurm_cluster.cluster() as environment:
        yield {**tiny.environment(), "SLURM_CONF": environment["SLURM_CONF"]}


def srun(
    words: list[str], *options: str, environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    command = tiny.command(*WORDS, *words, launcher=())
    return subprocess.run(
        ["srun", *options, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


class TestOnRealSlurm:
    pytestmark = ON_SLURM

    def test_one_node_and_two_train_alike(self, slurm: dict[str, str], tmp_path: Path) -> None:
        ways = {
            "one": (["-N1", "-n2"], "trainer.devices=2"),
            "two": (["-N2", "--ntasks-per-node=1"], "trainer.num_nodes=2"),
        }
        losses: dict[str, Any] = {}
        for name, (options, ranks) in ways.items():
            words = [f"run.name={name}", "budget.steps=3", ranks]
            finished = srun(words, *options, environment=slurm, folder=tmp_path)
            assert finished.returncode == 0, finished.stderr
            losses[name] = tiny.losses(tmp_path / "runs" / name)
        assert len(losses["one"]) == 3
        assert losses["one"] == losses["two"]

    def test_the_doctor_measures_both_nodes_and_plans_read_its_fleet(
        self, slurm: dict[str, str], tmp_path: Path
    ) -> None:
        lmtrain = [sys.executable, "-m", "lmtrain.cli"]
        command = ["srun", "-N2", "--ntasks-per-node=1", *lmtrain, "doctor", "--nodes", "--json"]
        measured = subprocess.run(command, cwd=tmp_path, env=slurm, capture_output=True, text=True, check=False)
        assert measured.returncode == 0, measured.stderr
        found = json.loads(measured.stdout)
        assert [(one["node"], one["between_nodes"] > 0) for one in found["ranks"]] == [(0, True), (1, True)]
        words = ["plan", "--config-dir", "conf", "cluster=measured", "strategy=ddp", "--json"]
        planned = subprocess.run([*lmtrain, *words], cwd=tmp_path, env=slurm, capture_output=True, check=True)
        assert json.loads(planned.stdout)["batch"]["num_ranks"] == 2

    @pytest.mark.faults
    def test_a_launched_job_trains_on_both_nodes_goes_on_after_its_signal_and_saves_at_scancel(
        self,
        slurm: dict[str, str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name, value in slurm.items():
            monkeypatch.setenv(name, value)
        ran: dict[str, Any] = {"check": True, "capture_output": True, "text": True}
        run, root = tmp_path / "all runs/a", "run.root=all runs"
        words = [*tiny.TINY, *WORDS, root, "run.name=a", "cluster=cpu", "cluster.num_nodes=2", "budget.steps=5000"]

        def num_steps() -> int:
            return len(tiny.losses(run)) if (run / "metrics.jsonl").exists() else 0

        def state() -> str:
            return subprocess.run(["scontrol", "show", "job", job], **ran).stdout

        def status() -> dict[str, Any]:
            return json.loads((run / "status.json").read_text())

        assert launch(["slurm", *words, "--time=10min", "--sbatch=comment=a 'b'", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        job, log = told["job"], tmp_path / told["log"]
        slurm_cluster.poll(lambda: num_steps() >= 2, seconds=120)
        assert {"NumNodes=2", "NumTasks=2", "TimeLimit=00:10:00", "Requeue=1"} <= {*state().split()}
        assert "Comment=a 'b'" in state()
        trainer = json.loads((run / "attempts/1/job.json").read_text())["config"]["trainer"]
        assert (trainer["devices"], trainer["num_nodes"]) == (1, 2)

        subprocess.run(["scancel", "--signal=USR1", f"{job}.0"], **ran)
        slurm_cluster.poll(lambda: "JobState=PENDING" in state(), seconds=120)
        stopped = num_steps()
        assert 2 <= stopped < 5000
        assert status()["exit_code"] == EXIT_REQUEUE
        # It would wait two minutes. In the second of its last step's end slurmd refuses it, by its old credential.
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now+3"], **ran)
        slurm_cluster.poll(lambda: num_steps() > stopped, seconds=120)
        assert f"continuing from step {stopped}" in log.read_text()

        subprocess.run(["scancel", job], **ran)
        slurm_cluster.poll(lambda: "JobState=CANCELLED" in state(), seconds=60)
        slurm_cluster.poll(lambda: status()["status"] != "RUNNING", seconds=60)
        assert (status()["exit_code"], status()["step"]) == (EXIT_TERMINATED, num_steps())

    @pytest.mark.faults
    def test_a_trial_whose_job_met_its_time_limit_goes_on_by_the_same_command(
        self, slurm: dict[str, str], tmp_path: Path
    ) -> None:
        words = [*WORDS, "-m", "optimizer.lr=0.01", "run.name=s", "sweep.launcher=slurm", "budget.steps=400"]
        command = tiny.command(*words, "sweep.slurm={timeout_min: 30}", launcher=())
        jobs, runs = tmp_path / "runs/s/jobs", tmp_path / "runs"

        def trials() -> list[Path]:
            return [file.parent for file in runs.glob("**/metrics.jsonl")]

        with subprocess.Popen(command, cwd=tmp_path, env=slurm, text=True, stdout=subprocess.PIPE) as sweep:
            slurm_cluster.poll(lambda: any(len(tiny.losses(run)) >= 2 for run in trials()), seconds=120)
            (note,) = jobs.glob("*.slurm.json")
            first = json.loads(note.read_text())["job_id"]
            subprocess.run(["scancel", "--signal=USR1", f"{first}.0"], env=slurm, check=True)
            printed, _ = sweep.communicate(timeout=200)
        assert sweep.returncode == EXIT_REQUEUE, printed
        again = subprocess.run(
            command, cwd=tmp_path, env=slurm, text=True, capture_output=True, timeout=100, check=False
        )
        assert again.returncode == 0, again.stdout
        (run,) = trials()
        assert sorted(tiny.losses(run)) == list(range(1, 401))
        assert json.loads(note.read_text())["job_id"] != first
        assert [file.name for file in sorted((run / "attempts").iterdir())] == ["1", "2"]

    def test_a_batch_script_s_own_process_is_no_rank(self, slurm: dict[str, str], tmp_path: Path) -> None:
        asks = "import os; from lmtrain.launch.detect import outer_launcher; print(outer_launcher(os.environ))"
        batch = ["sbatch", "--wait", "-N2", "--output=out", f"--wrap={sys.executable} -c '{asks}'"]
        subprocess.run(batch, cwd=tmp_path, env=slurm, check=True, capture_output=True)
        assert (tmp_path / "out").read_text() == "None\n"
