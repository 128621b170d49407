"""Run stages as job arrays on SLURM, through datatrove's executor: one array a job, each waiting for the one before.

The asking process submits, waits, and then reads the remaining documents; killed, it finds finished tasks done when it
is started again. Everything lies in one folder, on a file system seen by all nodes.
"""

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from data_pipelines.engines.cluster import ClusterEngine, ClusterPlan, Task, require_finished
from data_pipelines.stages.stage import PipelineJob
from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.child_process import SAFE_PATH
from lmtrain.data.dataset_folder import notify
from lmtrain.errors import ConfigurationError, EnvironmentProblem


@final
class SlurmEngine(ClusterEngine):
    """Stages in job arrays."""

    def __init__(
        self,
        *,
        partition: str,
        time_limit: str = "20:00:00",
        num_tasks: int = 100,
        max_running_tasks: int | None = None,
        max_array_tasks: int = 1000,
        cpus_per_task: int = 1,
        memory_gib_per_cpu: int = 4,
        qos: str = "normal",
        setup: TypedAlone[str | None] = None,
        sbatch: TypedAlone[Mapping[str, str] | None] = None,
        poll_seconds: float = 10.0,
    ) -> None:
        """`setup` is a line of shell for this environment's commands; None puts them on PATH.

        `sbatch` has more directives by their long names.
        """
        super().__init__("slurm", num_tasks=num_tasks)
        directives = dict(sbatch or {})
        for word in (partition, time_limit, qos, setup or "", *directives, *directives.values()):
            if len(str(word).splitlines()) > 1:  # behind a line break, a value would be a line of the script
                raise ConfigurationError(f"engine: must have settings of one line, got {word!r}.")
        self._poll_seconds = poll_seconds
        path = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
        self._settings: dict[str, Any] = {
            "partition": partition,
            "time": time_limit,
            "workers": max_running_tasks or -1,
            "max_array_size": max_array_tasks,
            "cpus_per_task": cpus_per_task,
            "mem_per_cpu_gb": memory_gib_per_cpu,
            "qos": qos,
            "env_command": f"export {SAFE_PATH}=1; {setup or path}",
            "sbatch_args": directives,
        }

    def _run(self, plan: ClusterPlan) -> None:
        from datatrove.executor import SlurmPipelineExecutor  # pyright: ignore[reportMissingImports]  # an extra

        if not shutil.which("sbatch"):
            raise EnvironmentProblem("engine=slurm finds no sbatch; run it where jobs are submitted.")
        executors: list[Any] = []
        for job in plan.jobs:
            executor = SlurmPipelineExecutor(
                pipeline=[Task(job.run)],
                tasks=job.num_tasks,
                job_name=f"lmtrain_{job.name}",
                logging_dir=str(plan.job_folder(job)),
                depends=executors[-1] if executors else None,
                **self._settings,
            )
            _submit(executor, job)
            executors.append(executor)
        for job, executor in zip(plan.jobs, executors, strict=True):
            while executor.get_incomplete_ranks(skip_completed=True) and _is_queued(executor.job_id):
                time.sleep(self._poll_seconds)
            require_finished(job, executor, plan.job_folder(job))


def _submit(executor: Any, job: PipelineJob) -> None:
    try:
        executor.launch_job()
    except subprocess.CalledProcessError as refusal:
        msg = f"sbatch refused {job.name} with status {refusal.returncode}; see its line above"
        raise ConfigurationError(f"{msg}, and the settings of engine (partition, qos, time_limit, sbatch).") from None
    submitted = "had finished before" if executor.job_id == -1 else f"is SLURM job {executor.job_id}"
    notify(f"  {job.name} ({job.num_tasks} tasks) {submitted}")


def _is_queued(job_id: Any) -> bool:
    """Return whether SLURM still knows a job as waiting or running."""
    asked = subprocess.run(["squeue", "--noheader", f"--jobs={job_id}"], capture_output=True, text=True, check=False)
    return asked.returncode == 0 and bool(asked.stdout.strip())
