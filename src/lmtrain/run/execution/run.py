"""The life of a run on one rank: join the others, find the checkpoint, build, train, record the end.

A run that goes back from a spike is built again, as its next attempt.
"""

import gc
import logging
import os
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

from lmtrain.accounting.quantities import format_quantity
from lmtrain.callbacks.graceful_stop import GracefulStop
from lmtrain.data.manifest import MANIFEST_FILE
from lmtrain.errors import (
    EXIT_DONE,
    EXIT_ENVIRONMENT,
    LMTRAIN_ERRORS,
    EnvironmentProblem,
    GoBack,
)
from lmtrain.launch.detect import OuterLauncher, outer_launcher
from lmtrain.launch.process_group import agree_on, broadcast_outcome, join
from lmtrain.report.ledger import read_ledger
from lmtrain.report.run_page import write_report
from lmtrain.report.summary import print_summary
from lmtrain.run.execution.build import Run, build_run
from lmtrain.run.execution.caches import keep_caches_in
from lmtrain.run.execution.failures import in_one_line, unmasked
from lmtrain.run.planning.cold_start import remember_start
from lmtrain.run.planning.machine_limits import is_out_of_memory, out_of_memory
from lmtrain.run.planning.prepared_tokens import remember_folder
from lmtrain.run.stored_runs.identity import allowed_changes
from lmtrain.run.stored_runs.initial_weights import require_base_tokenizer
from lmtrain.run.stored_runs.job import Job, config_hash
from lmtrain.run.stored_runs.resume import (
    find_checkpoint,
    fork_step,
    nothing_left,
    phases_read,
    remember_fork,
    run_so_far,
)
from lmtrain.run.stored_runs.skipped_batches import skip_spike
from lmtrain.tracking.atomic_files import write_json
from lmtrain.tracking.redaction import redact_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog
from lmtrain.tracking.status import Status, read_status, status_name, write_status
from lmtrain.training.checkpointing.checkpoints import NOT_SET, CheckpointFacts, require_same_left_out
from lmtrain.training.module import STATEFUL
from lmtrain.training.stopping import EXIT_CODES, StoppedEarly, ignoring_interrupts, stopping_at_once

DEFAULT_TIMEOUT_SECONDS = 600.0  # of a strategy without timeout_seconds


def execute(job: Job) -> int:
    """Train a job on this rank and return the exit code; every rank of the job calls this.

    Raises:
        ConfigurationError: The ranks disagree, or the run cannot go on from its checkpoint.
    """
    quiet_libraries()
    keep_caches_in(Path(job.config.run.cache))
    outer = outer_launcher(os.environ)
    while (code := attempt(job, outer)) is None:
        goes_on = job.config if job.config.resume != "never" else replace(job.config, resume="auto")
        job = replace(job, config=goes_on).begun_now()
        gc.collect()  # the model, the optimizer and what refers to them in circles
    return code


def attempt(job: Job, outer: OuterLauncher | None) -> int | None:
    """Train once; return the exit code, or None where the run goes back from a spike, which is noted."""
    rank = outer.rank if outer else 0
    try:
        with stopping_at_once(), in_one_line(job.folder):
            run, checkpoint = prepare(job, outer, rank=rank)
    except StoppedEarly as stop:
        code = EXIT_CODES[stop.number]
        if rank == 0:
            with ignoring_interrupts():
                print(stop, file=sys.stderr)
                known = read_status(job.folder)
                if known is None or known.status != "FINISHED":  # a finished run has not trained on
                    write_status(job.folder, Status(status=status_name(code), exit_code=code))
        return code
    if run is None:
        return EXIT_DONE
    try:
        code = train(job, run, checkpoint)
        if rank == 0 and code == EXIT_DONE:
            keep_start(job, run, checkpoint)
        return code
    except GoBack as spike:
        line = broadcast_outcome(partial(skip_spike, job, run.context.plan.batch, spike))
        if rank == 0:
            print(line, flush=True)
    return None


def prepare(job: Job, outer: OuterLauncher | None, *, rank: int) -> tuple[Run | None, CheckpointFacts | None]:
    """Join the other ranks and build the run, None if its budget is spent; with the checkpoint to continue from."""
    seconds = float(job.config.strategy.get("timeout_seconds") or DEFAULT_TIMEOUT_SECONDS)
    join(outer, timeout_seconds=seconds, variables=job.config.cluster.environment)
    agree_on(config_hash(job.config.values))
    checkpoint = broadcast_outcome(lambda: find_checkpoint(job))
    done, forked, read = broadcast_outcome(
        lambda: (run_so_far(job, checkpoint, before=job.attempt), fork_step(job, checkpoint), phases_read(checkpoint))
    )
    log = RunLog(job.folder) if rank == 0 else None
    run = build_run(job, rank=rank, log=log, done=done, fork_step=forked, read=read)
    if checkpoint:
        require_same_run(run, job, checkpoint)
        end, spent = run.context.plan.horizon, run.context.earlier_seconds_of_budget
        if line := nothing_left(end, checkpoint, folder=job.folder, spent_seconds=spent):
            if run.context.is_main_process:
                print(line)
            return None, checkpoint
    elif (warning := require_base_tokenizer(job, run.context.tokenizer)) and run.context.is_main_process:
        print(warning, file=sys.stderr, flush=True)
    run.context.events.flush()
    if run.context.log:  # only now, so that a refusal has lost nothing
        RunFolder(job.folder, root=Path(job.root)).accept_newest_attempt()
        run.context.log.truncate_after(checkpoint.step if checkpoint else -1)
        if checkpoint:
            remember_fork(job, checkpoint)
            tokens = format_quantity(checkpoint.tokens)
            print(f"continuing from step {checkpoint.step:,} ({tokens} tokens)", flush=True)
    return run, checkpoint


def require_same_run(run: Run, job: Job, checkpoint: CheckpointFacts) -> None:
    """Refuse a checkpoint of another run; warn of changes allowed by name, and reset the state of such parts."""
    reads_shards = not run.trainer.strategy.lightning_restore_optimizer
    name = run.parallelism.name if reads_shards else None
    changes = allowed_changes(run.context.identity, job, checkpoint, reads_shards_of=name)
    require_same_left_out(checkpoint, run.context.plan.batch.left_out_before(checkpoint.step))
    run.module.begins_anew = STATEFUL & {name.partition(".")[0] for name in changes}
    for name, change in changes.items() if run.context.is_main_process else ():
        state = "dropped" if change.endswith(f" -> {NOT_SET}") else "reset"
        also = f"; its state is {state}" if name.partition(".")[0] in STATEFUL else ""
        print(f"WARNING: {name} {change}, as run.allow_changes says{also}.", file=sys.stderr)


def train(job: Job, run: Run, checkpoint: CheckpointFacts | None) -> int:
    """Fit, and keep the run's recorded status true from start to end."""
    folder = RunFolder(job.folder, root=Path(job.root))
    if run.context.log is None:
        try:
            return fit(run, checkpoint)
        except StoppedEarly as stop:
            return EXIT_CODES[stop.number]
    remember_folder(job.config, run.context.dataset.folder)
    tracking = job.config.logger.build()
    tracking.start(folder)
    code, at_once, reason = 1, False, None
    try:
        code = fit(run, checkpoint)
    except StoppedEarly as stop:
        code, at_once = EXIT_CODES[stop.number], True
        print(stop, file=sys.stderr)
        return code
    except (*LMTRAIN_ERRORS, GoBack) as error:
        code, reason = error.exit_code, redact_text(str(error))
        raise
    except Exception as error:
        reason = redact_text(f"{type(error).__name__}: {error}")
        raise
    finally:
        step = run.trainer.global_step
        tokens = run.context.tokens_at(step)
        with ignoring_interrupts():
            try:
                run.context.log.close()
            except EnvironmentProblem:
                code = EXIT_ENVIRONMENT
                raise
            finally:
                status = Status(status_name(code), exit_code=code, step=step, tokens=tokens, reason=reason)
                keep_report(folder.path, status)
                tracking.finish(status, at_once=at_once)
    if code == EXIT_DONE:
        if line := run.datamodule.sources_line(step):
            print(line)
        print_summary(job.folder, allowed=job.config.allowed)
    return code


def keep_start(job: Job, run: Run, checkpoint: CheckpointFacts | None) -> None:
    """Keep how long it took to the first steps; of a start that prepared data, compilation alone."""
    if run.trainer.global_step < (checkpoint.step if checkpoint else 0) + 2:
        return  # compilation is what the first step takes beyond the second
    watch = run.context.events.stopwatch
    seconds, prepared_at = watch.seconds(), (run.context.dataset.folder / MANIFEST_FILE).stat().st_mtime
    setup = seconds["setup"] if prepared_at < watch.started_at else 0.0
    remember_start(job.config, run.context.plan.batch, setup_seconds=setup, compile_seconds=seconds["compile"])


def keep_report(folder: Path, status: Status) -> None:
    """Write report.html and ledger.json of a run that ended so; a full disk loses these, but not its exit code."""
    write_status(folder, replace(status, is_closing=True))  # a tracker waits for them
    try:
        write_report(folder)
        write_json(folder / "ledger.json", read_ledger(folder).to_json())
    except LMTRAIN_ERRORS as error:
        print(f"report.html or ledger.json was not written: {error}", file=sys.stderr)


def fit(run: Run, checkpoint: CheckpointFacts | None) -> int:
    """Run the Trainer and return its exit code.

    Raises:
        OutOfMemory: In place of the device's error, with what would fit.
    """
    graceful_stop = next((each for each in run.callbacks.values() if isinstance(each, GracefulStop)), None)
    try:
        with stopping_at_once(), in_one_line(run.context.folder), unmasked():
            run.trainer.fit(
                run.module,
                datamodule=run.datamodule,
                ckpt_path=str(checkpoint.path) if checkpoint else None,
                weights_only=True,
            )
    except StoppedEarly:
        if graceful_stop is None or not graceful_stop.is_through:
            raise
    except RuntimeError as failure:
        if isinstance(failure, EnvironmentProblem) or not is_out_of_memory(failure):
            raise
        raise out_of_memory(run.config, run.context.plan.batch) from failure
    finally:
        run.context.events.close()
    stop_signal = graceful_stop.stop_signal if graceful_stop else None
    return EXIT_CODES[stop_signal] if stop_signal else EXIT_DONE


def quiet_libraries() -> None:
    """Silence notices and advertisements of libraries; warnings about the run itself stay."""
    for name in ("lightning.pytorch", "lightning.fabric", "torch.utils.cpp_extension", "torch.distributed.tensor"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in (".*does not have many workers.*", ".*`max_epochs` was not set.*", ".*isinstance.*LeafSpec.*"):
        warnings.filterwarnings("ignore", message)
    warnings.filterwarnings("ignore", module="lightning")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # a traced step is in the ledger, not on the console
