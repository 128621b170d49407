"""Run stages as tasks on a Ray cluster, through datatrove's executor, one job after another.

`ray job submit -- lmtrain prepare engine=ray` does it from elsewhere. Everything lies in one folder, on a file system
seen by all machines of the cluster.
"""

from typing import Any, final

from data_pipelines.engines.cluster import ClusterEngine, ClusterPlan, Task, require_finished
from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.data.dataset_folder import notify
from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import require_package
from lmtrain.storage.damage import one_line


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
    ) -> None:
        """`address` "auto" is this machine's own cluster."""
        super().__init__("ray", num_tasks=num_tasks)
        require_package("engine=ray", "ray", extra="ray")
        self._address = address
        self._settings: dict[str, Any] = {
            "workers": max_running_tasks or -1,
            "cpus_per_task": cpus_per_task,
            "mem_per_cpu_gb": memory_gib_per_cpu,
        }

    def _run(self, plan: ClusterPlan) -> None:
        import ray  # pyright: ignore[reportMissingImports]  # an extra
        from datatrove.executor.ray import RayPipelineExecutor  # pyright: ignore[reportMissingImports]  # likewise

        try:
            ray.init(address=self._address, log_to_driver=False, ignore_reinit_error=True)
            for job in plan.jobs:
                folder = plan.job_folder(job)
                notify(f"  {job.name} ({job.num_tasks} tasks); their output is in {folder}")
                executor = RayPipelineExecutor(
                    pipeline=[Task(job.run)], tasks=job.num_tasks, logging_dir=str(folder), **self._settings
                )
                executor.run()
                require_finished(job, executor, folder)
        except EnvironmentProblem:
            raise
        except Exception as problem:  # of Ray, or of a task
            raise EnvironmentProblem(
                f"engine=ray: {one_line(problem)}; the same command goes on from here."
            ) from problem
