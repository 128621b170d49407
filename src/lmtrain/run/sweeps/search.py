"""A search with Optuna, from the overrides of a command line to its end: every error comes before the first trial.

The folder of a search, runs/NAME/, holds sweep.json, Optuna's journal, the trials' runs, and their jobs and output. One
process at a time writes it; another start of the same command continues it.
"""

import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.run.builders.device import device_type
from lmtrain.run.compose.arguments import Arguments
from lmtrain.run.compose.search_words import SearchWords
from lmtrain.run.execution.start import prepare_data
from lmtrain.run.gate import naming_trial
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.signatures import OURS
from lmtrain.run.stored_runs.job import EXECUTION_KEYS, Job, short_hash
from lmtrain.run.sweeps.runners import LocalRunner, Runner, SlurmRunner, require_slurm
from lmtrain.run.sweeps.search_lines import SearchLines
from lmtrain.run.sweeps.sweep import Sweep
from lmtrain.run.validators.callbacks import (
    held_out_passes,
    logged_metrics,
)
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import checked_words
from lmtrain.search.study import open_study, require_optuna
from lmtrain.tracking.redaction import redact_override
from lmtrain.tracking.run_folder import run_path
from lmtrain.tracking.status import status_name
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial, held_sweep, read_sweep

MakeJob = Callable[[Arguments], Job]
# Settings that may differ between two starts of one search; the others make its trials comparable.
FREE_SETTINGS: Final = frozenset({"trials", "parallel", "launcher", "slurm", "max_hours", "seed"})
FREE_GROUPS: Final = frozenset({"run", "resume", "logger", "trainer", "cluster"})


def run_to_its_end(sweep: Sweep, job: Job) -> int:
    """Run a sweep, print the ranking of its trials, and tell its tracker; return the exit code."""
    code = 1
    try:
        code = sweep.run()
    finally:
        sweep.lines.last(sweep.sweep)
        root = Path(job.root)
        job.config.logger.build().finish_sweep(sweep.folder, job.sweep, root=root, status=status_name(code))
    return code


def run_search(words: SearchWords, make_job: MakeJob, *, program: str, tell: Callable[[Path], None]) -> int:
    """Check a search, then train its trials; return the exit code. `tell` learns the folder before the first one."""
    settings, base = words.settings, checked_base(words, make_job)
    config, folder = base.config, sweep_folder(words, base.config)
    sweep_id = f"sweep-{short_hash(str(folder))}" if config.run.name else folder.name
    runner = runner_of(config, settings, folder)
    name = str(folder.relative_to(Path(base.root)))
    typed = shlex.join([*base.kept_flags, *map(redact_override, words.arguments.overrides)])
    fixed = [word for word in words.fixed if not word.startswith("run.name=")]

    def job_of(trial: SweepTrial, run: SweepRun) -> Job:
        words_of_run = [*trial.words, *([] if "seed" in trial.values else [f"seed={run.seed}"])]
        job = make_job(words.of_trial(words_of_run))
        return replace(job, name=f"{name}/{run.folder}", sweep=sweep_id, program=program)

    tell(folder)
    with held_sweep(folder):
        sweep = Sweep(
            settings=settings,
            seeds=range(config.seed, config.seed + settings.seeds),
            num_trials=words.num_trials,
            folder=folder,
            sweep=begin_sweep(folder, words, config, name=name, command=f"{program} -m {typed}"),
            study=open_study(folder, words.space, settings),
            make_job=job_of,
            runner=runner,
            lines=SearchLines(f"{config.run.root}/{name}", program, [*base.kept_flags, *fixed]),
        )
        prepare_data(base)
        return run_to_its_end(sweep, replace(base, sweep=sweep_id))


def checked_base(words: SearchWords, make_job: MakeJob) -> Job:
    """Check the values of a search's lists and the ends of its intervals, and return the job of the first of each."""
    settings = words.settings
    require_optuna(settings.sampler)
    extremes = checked_words(words.space)
    jobs: list[Job] = []
    for number, values in enumerate(extremes):
        with naming_trial(extremes, number):
            jobs.append(make_job(words.of_trial(values)))
    resume = jobs[0].config.resume
    if resume != "auto":
        raise ConfigurationError(
            f"resume={resume} is for a single run: the same command continues a search; leave it out, or use "
            "another run.name to start again."
        )
    _require_pruner(jobs[0].config, settings)
    for number, job in enumerate(jobs):
        with naming_trial(extremes, number):
            require_metric(job.config, settings)
    return jobs[0]


def require_metric(config: RunConfig, settings: SearchSettings) -> None:
    """Refuse a metric that no trial of a config logs; somebody else's callbacks may log more than is known here."""
    metric = settings.metric
    if metric.startswith("validation/") and not any(facts.reads for facts in config.callback_facts.values()):
        raise ConfigurationError(
            f"sweep.metric={metric} needs callbacks.validation, which is switched off; set sweep.metric=train/loss."
        )
    logged = logged_metrics(config)
    if metric not in logged and all(node.target.startswith(OURS) for node in config.callbacks.values()):
        raise ConfigurationError(
            f"sweep.metric: must be one of {', '.join(logged)}, got {metric}.{suggest(metric, logged)}"
        )


def _require_pruner(config: RunConfig, settings: SearchSettings) -> None:
    """Refuse a run that lacks something the pruner needs."""
    if settings.pruner == "none":
        return
    pruner, validation = f"sweep.pruner={settings.pruner}", held_out_passes(config)
    if not any(each.stops_on_signals for each in config.callback_facts.values()):
        raise ConfigurationError(f"{pruner} needs callbacks.graceful_stop, which is switched off.")
    if not settings.metric.startswith("validation/"):
        raise ConfigurationError(f"{pruner} judges validations; set sweep.metric=validation/bits_per_byte.")
    passes = validation.num_passes if validation else None
    if passes is not None and passes < 2:
        raise ConfigurationError(f"{pruner} needs a validation during the run; set callbacks.validation.num_passes=4.")


def runner_of(config: RunConfig, settings: SearchSettings, folder: Path) -> Runner:
    """Return the runner of a sweep, on this machine or in SLURM's queue."""
    if settings.launcher == "slurm":
        require_slurm()
        return SlurmRunner(
            folder=folder / "slurm",
            parameters=settings.slurm or {},
            num_devices=config.trainer.devices,
            uses_gpus=config.cluster.device is not None and config.trainer.accelerator != "cpu",
        )
    num_gpus = 0
    if device_type(config.trainer.accelerator) != "cpu":
        import torch

        num_gpus = torch.accelerator.device_count()
    return LocalRunner(
        parallel=settings.parallel,
        num_devices=config.trainer.devices,
        num_gpus=num_gpus,
        shows_output=settings.parallel == 1,
    )


def sweep_folder(words: SearchWords, config: RunConfig) -> Path:
    """Return the folder: run.name, else a name from the sweep's own overrides."""
    free = {f"sweep.{name}" for name in FREE_SETTINGS}
    keys = {word: word.lstrip("+").partition("=")[0] for word in words.arguments.overrides}
    telling = [word for word, key in keys.items() if key not in free and not key.startswith(EXECUTION_KEYS)]
    name = config.run.name or f"sweep-{short_hash(sorted(telling))}"
    return run_path(Path(config.run.root).absolute(), name)


def begin_sweep(folder: Path, words: SearchWords, config: RunConfig, *, name: str, command: str) -> SweepFile:
    """Return the sweep of a folder: the one there, else a new one, whose file exists before its study."""
    swept = {key.partition(".")[0] for key in words.space}
    # Other values of a swept group follow from its choice; of such a group the overrides of all trials count.
    of_swept = sorted(word for word in words.fixed if word.lstrip("+~").partition(".")[0] in swept)
    groups = {name: value for name, value in config.values.items() if name not in FREE_GROUPS | swept}
    settings = asdict(words.settings)
    judged = {name: value for name, value in settings.items() if name not in FREE_SETTINGS}
    space = {key: dimension.describe() for key, dimension in words.space.items()}
    fingerprint = short_hash([groups, judged, space, of_swept])
    found = read_sweep(folder)
    if found is None:
        found = SweepFile(
            name=name,
            kind="search",
            metric=words.settings.metric,
            fingerprint=fingerprint,
            command=command,
            space=space,
        )
    if found.fingerprint != fingerprint:
        raise ConfigurationError(
            f"{folder} is another sweep; give this one another run.name, or continue that sweep with its command: "
            f"{found.command}"
        )
    found.settings, found.command = settings, command
    found.save(folder)
    return found
