"""Run stages as tasks on a Ray cluster, through datatrove's executor, one job after another.

A driver script is written and run: `ray job submit -- python DRIVER` from elsewhere does the same. Everything lies in
one folder, on a file system seen by all machines of the cluster.
"""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

from data_pipelines.engines.cluster import ClusterPlan, pipeline_of, plan_jobs, require_finished, require_positive
from data_pipelines.extras import require_extra, silence_datatrove
from data_pipelines.progress import tell
from data_pipelines.sources.base import Source
from data_pipelines.stages.stage import Item, PipelineJob, Stage
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
class RayEngine:
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
        require_positive(num_tasks=num_tasks, cpus_per_task=cpus_per_task, max_running_tasks=max_running_tasks or 1)
        require_extra("engine=ray")
        if not dry_run:
            require_extra("engine=ray", packages=("ray",), extra="ray")
        self._address = address
        self._num_tasks = num_tasks
        self._dry_run = dry_run
        self._settings: dict[str, Any] = {
            "workers": max_running_tasks or -1,
            "cpus_per_task": cpus_per_task,
            "mem_per_cpu_gb": memory_gib_per_cpu,
        }

    def __call__(self, source: Source, stages: Sequence[Stage], /, *, folder: Path) -> Iterator[Item]:
        """Yield the source's items in order, each document through all stages or dropped with a reason.

        Raises:
            EnvironmentProblem: Unfinished tasks.
            SystemExit: It was a dry run: the driver is written.
        """
        silence_datatrove()
        plan = plan_jobs(source, stages, folder.absolute(), num_tasks=self._num_tasks)
        driver = self._write_driver(plan)
        if self._dry_run:
            tell(f"  engine.dry_run=true: {len(plan.jobs)} Ray jobs are written and nothing is run")
            for job in plan.jobs:
                tell(f"  {job.num_tasks:>6} tasks  {_pickled(plan.folder, job)}")
            tell(f"  python {driver}")
            raise SystemExit(0)
        self._run(driver, plan)
        yield from plan.items()

    def _write_driver(self, plan: ClusterPlan) -> Path:
        import dill

        for job in plan.jobs:
            path = _pickled(plan.folder, job)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(dill.dumps(self._executor(job, plan.folder)))
        paths = "\n".join(f"    {str(_pickled(plan.folder, job))!r}," for job in plan.jobs)
        driver = plan.folder / "ray_driver.py"
        driver.write_text(DRIVER.format(address=self._address, paths=paths))
        return driver

    def _executor(self, job: PipelineJob, folder: Path) -> Any:
        from datatrove.executor.ray import RayPipelineExecutor  # pyright: ignore[reportMissingImports]  # an extra

        place = str(folder / "jobs" / job.name)
        return RayPipelineExecutor(pipeline=pipeline_of(job), tasks=job.num_tasks, logging_dir=place, **self._settings)

    def _run(self, driver: Path, plan: ClusterPlan) -> None:
        log = driver.with_suffix(".log")
        tell(f"  engine=ray runs {len(plan.jobs)} jobs; their output is in {log}")
        with log.open("w") as output:
            ran = subprocess.run(
                python_command(str(driver)), stdout=output, stderr=output, env=python_environment(), check=False
            )
        for job in plan.jobs:
            require_finished(job, self._executor(job, plan.folder), plan.folder / "jobs" / job.name)
        if ran.returncode:
            raise EnvironmentProblem(f"engine=ray ended with status {ran.returncode}; its output is in {log}.")


def _pickled(folder: Path, job: PipelineJob) -> Path:
    return folder / "jobs" / job.name / "executor.pik"
