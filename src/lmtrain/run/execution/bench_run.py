"""Train a composed config for some seconds in a temporary folder, and return the time of its steps."""

import contextlib
import io
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.observed.bench import Bench, Peaks
from lmtrain.doctor.measure import measure_gpu, measure_until_two_agree
from lmtrain.run.execution.build import Run, build_run
from lmtrain.run.execution.caches import keep_caches_in
from lmtrain.run.execution.meta_build import build_on_meta
from lmtrain.run.execution.run import fit, quiet_libraries
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import RunConfig
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog
from lmtrain.training.peak import CPU_DTYPES, settled_matmul
from lmtrain.training.step_timer import StepTimer
from lmtrain.training.stopping import ended_by_signals


def measure(config: RunConfig, *, overrides: list[str], seconds: float) -> Bench:
    """Check a config, train it until its step's time is known, and delete its files.

    Raises:
        ConfigurationError: The config is wrong, or larger than this machine's memory.
        EnvironmentProblem: The machine cannot train it.
        DataError: Its data is missing or damaged.
        KeyboardInterrupt: It was interrupted.
        SystemExit: Another signal ended it.
    """
    began = time.perf_counter()
    quiet_libraries()
    keep_caches_in(Path(config.run.cache))
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="lmtrain-bench-") as folder:
        job = Job(config=config, overrides=overrides, name="bench", root=folder)
        job = build_on_meta(job, is_alone=True)
        RunFolder(job.folder, root=Path(folder)).create()
        timer = StepTimer(seconds=seconds, sync_steps=config.run.log_every_steps)
        torch.compiler.reset()  # an earlier config's compilations are not versions of this one's code
        with contextlib.redirect_stdout(io.StringIO()):
            run = _train(job, timer)
    return _bench(job, run, timer, setup_seconds=timer.started_at - began)


def _train(job: Job, timer: StepTimer) -> Run:
    log = RunLog(job.folder)
    run = build_run(job, rank=0, log=log)
    run.trainer.callbacks.append(timer)  # pyright: ignore[reportAttributeAccessIssue]  # a list, always
    try:
        fit(run, None)
    except SystemExit as ended:  # the Trainer's form of an interrupt (lightning 2.6.6)
        raise KeyboardInterrupt from ended
    finally:
        log.close()
    return run


def _bench(job: Job, run: Run, timer: StepTimer, *, setup_seconds: float) -> Bench:
    assert timer.parts is not None
    assert timer.syncs_per_step is not None
    plan = run.context.plan
    matmul = planned_setting(job.config).bytes_of.matmul
    return Bench(
        parts=timer.parts,
        step_seconds=timer.step_seconds,
        num_steps=timer.num_steps,
        batch=plan.batch,
        flops_per_token=plan.flops_per_token,
        peaks=Peaks(
            flops=plan.peak_flops,
            source=plan.peak_source,
            matmul=matmul_rate(matmul, uses_gpu=run.module.device.type == "cuda"),
        ),
        peak_bytes=timer.peak_bytes,
        setup_seconds=setup_seconds,
        first_step_seconds=timer.first_step_seconds,
        syncs_per_step=timer.syncs_per_step,
    )


def matmul_rate(matmul: MatmulDtype, *, uses_gpu: bool) -> float | None:
    """Return the measured FLOP/s of square matrix products in a format; None: unknown."""
    if not uses_gpu:
        return settled_matmul(matmul) if matmul in CPU_DTYPES else None
    device, _ = measure_until_two_agree(partial(measure_gpu, copy_bytes=2**20))
    return device.matmul_flops.get(matmul)
