"""Run stages as tasks on a Ray cluster, through datatrove's executor, one job after another.

A driver script is written and run: `ray job submit -- python DRIVER` from elsewhere does the same. Everything lies in
one folder, on a file system seen by all machines of the cluster.
"""

import subprocess
from pathlib import Path
from typing import Any, final

from data_pipelines.engines.cluster import ClusterEngine, ClusterPlan, Task, require_finished
from data_pipelines.extras import require_extra
from data_pipelines.progress import tell
from data_pipelines.stages.stage import PipelineJob
from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import EnvironmentProblem

DRIVER = """\
import dill
import ray

ray.init(address={address!r})
for path in (
{paths}
):
    with open(path, "rb") as pickled:
        executor = dill.load(pickled)
    executor.run()
    if missing := executor.get_incomplete_ranks(skip_completed=True):
        raise SystemExit(f"{{len(missing)}} tasks of {{path}} did not finish")
"""


@final
class RayEngine(ClusterEngine):
    """Stages in Ray tasks."""

    def __init__(
        self,
        *,
        address: TypedAlone[str] = "auto",
        num_tasks: int = 100,
        max_running_tasks: int | None = None,
        cpus_per_task: int = 1,
        memory_gib_per_cpu: float = 2.0,
        dry_run: bool = False,
    ) -> None:
        """`address` "auto" is this machine's own cluster; `dry_run` writes the driver and runs nothing.

        Raises:
            ConfigurationError: Not a positive number.
            EnvironmentProblem: A package is not installed.
        """
        numbers = {"cpus_per_task": cpus_per_task, "max_running_tasks": max_running_tasks or 1}
        super().__init__("ray", num_tasks=num_tasks, dry_run=dry_run, **numbers)
        if not dry_run:
            require_extra("engine=ray", packages=("ray",), extra="ray")
        self._address = address
        self._settings: dict[str, Any] = {
            "workers": max_running_tasks or -1,
            "cpus_per_task": cpus_per_task,
            "mem_per_cpu_gb": memory_gib_per_cpu,
        }

    def _write(self, plan: ClusterPlan) -> None:
        tell(f"  python {self._write_driver(plan)}")

    def _write_driver(self, plan: ClusterPlan) -> Path:
        import dill

        paths: list[Path] = []
        for job in plan.jobs:
            folder = plan.job_folder(job)
            folder.mkdir(parents=True, exist_ok=True)
            paths.append(folder / "executor.pik")
            paths[-1].write_bytes(dill.dumps(self._executor(job, folder)))
        driver = plan.folder / "ray_driver.py"
        listed = "\n".join(f"    {str(path)!r}," for path in paths)
        driver.write_text(DRIVER.format(address=self._address, paths=listed))
        return driver

    def _executor(self, job: PipelineJob, folder: Path) -> Any:
        from datatrove.executor.ray import RayPipelineExecutor  # pyright: ignore[reportMissingImports]  # an extra

        return RayPipelineExecutor(
            pipeline=[Task(job.run)], tasks=job.num_tasks, logging_dir=str(folder), **self._settings
        )

    def _run(self, plan: ClusterPlan) -> None:
        driver = self._write_driver(plan)
        log = driver.with_suffix(".log")
        tell(f"  engine=ray runs {len(plan.jobs)} jobs; their output is in {log}")
        with log.open("w") as output:
            ran = subprocess.run(
                python_command(str(driver)), stdout=output, stderr=output, env=python_environment(), check=False
            )
        for job in plan.jobs:
            require_finished(job, self._executor(job, plan.job_folder(job)), plan.job_folder(job))
        if ran.returncode:
            raise EnvironmentProblem(f"engine=ray ended with status {ran.returncode}; its output is in {log}.")
