"""Run stages as job arrays on SLURM, through datatrove's executor: one array a job, each waiting for the one before.

The asking process submits, waits, and then reads the remaining documents; killed, it finds finished tasks done when it
is started again. Everything lies in one folder, on a file system seen by all nodes.
"""

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from data_pipelines.engines.cluster import ClusterPlan, pipeline_of, plan_jobs, require_finished, require_positive
from data_pipelines.extras import require_extra, silence_datatrove
from data_pipelines.progress import tell
from data_pipelines.sources.base import Source
from data_pipelines.stages.stage import Item, PipelineJob, Stage
from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.child_process import SAFE_PATH
from lmtrain.errors import ConfigurationError, EnvironmentProblem

SCRIPT = "launch_script.slurm"  # datatrove's name of a submitted script


@final
class SlurmEngine:
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
        dry_run: bool = False,
    ) -> None:
        """`setup` is a line of shell for this environment's commands; None puts them on PATH.

        `sbatch` has more directives by their long names; `dry_run` writes the scripts and submits nothing.

        Raises:
            ConfigurationError: Not a positive number, or text of several lines.
            EnvironmentProblem: The extra is not installed.
        """
        require_positive(num_tasks=num_tasks, max_array_tasks=max_array_tasks, cpus_per_task=cpus_per_task)
        require_positive(memory_gib_per_cpu=memory_gib_per_cpu, max_running_tasks=max_running_tasks or 1)
        _require_one_line(partition, time_limit, qos, setup or "", *(sbatch or {}), *(sbatch or {}).values())
        require_extra("engine=slurm")
        self._num_tasks = num_tasks
        self._poll_seconds = poll_seconds
        self._dry_run = dry_run
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
            "sbatch_args": dict(sbatch or {}),
        }

    def __call__(self, source: Source, stages: Sequence[Stage], /, *, folder: Path) -> Iterator[Item]:
        """Yield the source's items in order, each document through all stages or dropped with a reason.

        Raises:
            EnvironmentProblem: No SLURM here, or unfinished tasks.
            SystemExit: It was a dry run: the scripts are written.
        """
        silence_datatrove()
        plan = plan_jobs(source, stages, folder.absolute(), num_tasks=self._num_tasks)
        if self._dry_run:
            self._write_scripts(plan)
            raise SystemExit(0)
        if not shutil.which("sbatch"):
            msg = "engine=slurm finds no sbatch here; run it where jobs are submitted, or see its scripts with"
            raise EnvironmentProblem(f"{msg} engine.dry_run=true.")
        self._submit_and_wait(plan)
        yield from plan.items()

    def _executor(self, job: PipelineJob, folder: Path, *, depends: Any = None) -> Any:
        from datatrove.executor import SlurmPipelineExecutor  # pyright: ignore[reportMissingImports]  # an extra

        return SlurmPipelineExecutor(
            pipeline=pipeline_of(job),
            tasks=job.num_tasks,
            job_name=f"lmtrain_{job.name}",
            logging_dir=str(folder / "jobs" / job.name),
            depends=depends,
            **self._settings,
        )

    def _write_scripts(self, plan: ClusterPlan) -> None:
        tell(f"  engine.dry_run=true: {len(plan.jobs)} job arrays are written and nothing is submitted")
        for job in plan.jobs:
            executor = self._executor(job, plan.folder)
            path = plan.folder / "jobs" / job.name / SCRIPT
            path.parent.mkdir(parents=True, exist_ok=True)
            run = f"launch_pickled_pipeline {executor.logging_dir.resolve_paths('executor.pik')}"
            num_tasks = min(job.num_tasks, self._settings["max_array_size"])
            path.write_text(
                executor.get_launch_file_contents(executor.get_sbatch_args(num_tasks), f"srun  -l -n 1 {run}")
            )
            tell(f"  {job.num_tasks:>6} tasks  {path}")

    def _submit_and_wait(self, plan: ClusterPlan) -> None:
        executors: list[Any] = []
        for job in plan.jobs:
            executor = self._executor(job, plan.folder, depends=executors[-1] if executors else None)
            _submit(executor, job)
            executors.append(executor)
        for job, executor in zip(plan.jobs, executors, strict=True):
            while executor.get_incomplete_ranks(skip_completed=True) and _is_queued(executor.job_id):
                time.sleep(self._poll_seconds)
            require_finished(job, executor, plan.folder / "jobs" / job.name)


def _submit(executor: Any, job: PipelineJob) -> None:
    try:
        executor.launch_job()
    except subprocess.CalledProcessError as refusal:
        msg = f"sbatch refused {job.name} with status {refusal.returncode}; see its line above"
        raise ConfigurationError(f"{msg}, and the settings of engine (partition, qos, time_limit, sbatch).") from None
    submitted = "had finished before" if executor.job_id == -1 else f"is SLURM job {executor.job_id}"
    tell(f"  {job.name} ({job.num_tasks} tasks) {submitted}")


def _is_queued(job_id: Any) -> bool:
    """Return whether SLURM still knows a job as waiting or running."""
    asked = subprocess.run(["squeue", "--noheader", f"--jobs={job_id}"], capture_output=True, text=True, check=False)
    return asked.returncode == 0 and bool(asked.stdout.strip())


def _require_one_line(*words: str) -> None:
    """Refuse a line break: behind it a directive's value would be a line of the script."""
    for word in words:
        if len(str(word).splitlines()) > 1:
            raise ConfigurationError(f"engine={word!r} has several lines; a setting of SLURM is one.")
