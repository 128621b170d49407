"""From a search's words to a search ready to run: every refusal comes before the first trial."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lmtrain.accounting.training_plan.utilization import usd
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.launch.detect import OuterLauncher
from lmtrain.run.builders.kernels import device_type
from lmtrain.run.compose.arguments import Arguments
from lmtrain.run.compose.search_words import SearchWords
from lmtrain.run.execution.start import prepare_data
from lmtrain.run.execution.sweep import naming_trial
from lmtrain.run.planning.plan import planned_with
from lmtrain.run.run_config import RunConfig
from lmtrain.run.stored_runs.job import Job, short_hash
from lmtrain.run.sweeps.allowance import SECONDS_PER_HOUR, Allowance
from lmtrain.run.sweeps.book import TrialBook
from lmtrain.run.sweeps.local_runner import LocalRunner, Runner
from lmtrain.run.sweeps.num_trials import num_trials, require_first_round
from lmtrain.run.sweeps.search import Search
from lmtrain.run.sweeps.search_limits import SearchLimits
from lmtrain.run.sweeps.search_metric import require_metric
from lmtrain.run.sweeps.slurm_runner import SlurmRunner, require_slurm
from lmtrain.run.sweeps.sweep_folder import (
    SweepFolder,
    fingerprint_under,
    new_sweep,
    sweep_folder,
)
from lmtrain.run.sweeps.trial_lines import TrialLines
from lmtrain.run.validators.callbacks import callback_facts, held_out_passes
from lmtrain.search.halving import round_ends
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import checked_words
from lmtrain.search.study import enqueue_grid, open_study, require_optuna
from lmtrain.tracking.redaction import redact_override
from lmtrain.tracking.status import status_name
from lmtrain.tracking.sweep_file import SweepFile, read_sweep

MakeJob = Callable[[Arguments], Job]


@dataclass(frozen=True, kw_only=True)
class PreparedSearch:
    """A search of which all extremes were checked; `base` is the first of them."""

    words: SearchWords
    base: Job
    make_job: MakeJob
    folder: SweepFolder
    rounds: Sequence[int]
    allowance: Allowance
    runner: Runner
    sweep_id: str
    program: str

    def run(self) -> int:
        """Hold the sweep's folder, search, and tell the end; return the exit code."""
        with self.folder.held():
            return self._run()

    def _run(self) -> int:
        words, settings = self.words, self.words.settings
        name = str(self.folder.path.relative_to(Path(self.base.root)))
        sweep = self._begin(name)
        study = open_study(self.folder.path, settings)
        if settings.sampler == "grid":
            enqueue_grid(study, words.space)
        prepare_data(self.base)
        allowance = self._planned()
        num_of_trials = num_trials(words, sweep)
        print(allowance.line(num_of_trials), flush=True)
        progress = self.trial_lines(name)
        first_seed = self.base.config.seed
        search = Search(
            settings=settings,
            num_trials=num_of_trials,
            folder=self.folder,
            book=TrialBook(
                sweep=sweep,
                study=study,
                space=words.space,
                settings=settings,
                seeds=range(first_seed, first_seed + settings.seeds),
                rounds=self.rounds,
                folder=self.folder.path,
                progress=progress,
            ),
            make_job=self._job,
            runner=self.runner,
            limits=SearchLimits(allowance=allowance, sweep=sweep, num_trials=num_of_trials, progress=progress),
            progress=progress,
        )
        code = 1
        try:
            code = search.run()
        finally:
            progress.last_lines(sweep)
            logger = self.base.config.logger.build()
            logger.finish_sweep(Path(self.base.root), self.sweep_id, status=status_name(code))
        return code

    def _planned(self) -> Allowance:
        """Return the allowance with the plan of a run."""
        plan = planned_with(self.base.config, [])
        has_start = plan is None or plan.speed is None or plan.speed.setup_seconds > 0
        seconds = plan.seconds if plan else None
        return replace(self.allowance, planned_seconds=seconds, has_start=has_start, rounds=self.rounds)

    def trial_lines(self, name: str) -> TrialLines:
        """Return the console's side of a sweep of this name."""
        repeated = [*self.base.kept_flags, *_without_name(self.words.fixed)]
        return TrialLines(f"{self.base.config.run.root}/{name}", self.program, repeated)

    def _begin(self, name: str) -> SweepFile:
        typed = shlex.join([*self.base.kept_flags, *map(redact_override, self.words.arguments.overrides)])
        new = new_sweep(self.words, self.base.config, name=name, command=f"{self.program} -m {typed}")
        earlier = read_sweep(self.folder.path)
        sweep = self.folder.begin(new, under_metric=partial(fingerprint_under, self.words, self.base.config))
        if earlier is not None:
            require_first_round(self.words, earlier)
        return sweep

    def _job(self, words: Sequence[str]) -> Job:
        return replace(self.make_job(self.words.of_trial(words)), sweep=self.sweep_id, program=self.program)


def prepare_search(
    words: SearchWords, make_job: MakeJob, *, outer: OuterLauncher | None, program: str
) -> PreparedSearch:
    """Check a search, the values of its lists and the ends of its intervals among it.

    Raises:
        ConfigurationError: It cannot be, or not with these values.
        EnvironmentProblem: A package is missing.
    """
    if outer is not None:
        raise EnvironmentProblem(
            "hydra/sweeper=optuna starts the ranks of its trials itself; run it once, without torchrun or srun."
        )
    require_optuna(words.settings.sampler)
    extremes = checked_words(words.space)
    jobs: list[Job] = []
    for number, values in enumerate(extremes):
        with naming_trial(extremes, number):
            jobs.append(make_job(words.of_trial(values)))
    base = jobs[0]
    _require_resumable(base.config)
    rounds = _rounds(base.config, words.settings)
    for number, job in enumerate(jobs[1:], start=1):
        with naming_trial(extremes, number):
            require_metric(job.config, words.settings)
    folder = sweep_folder(words, base.config)
    return PreparedSearch(
        words=words,
        base=base,
        make_job=make_job,
        folder=folder,
        rounds=rounds,
        allowance=_allowance(base.config, words.settings),
        runner=runner_of(base.config, words.settings, folder.path),
        sweep_id=f"sweep-{short_hash(str(folder.path))}" if base.config.run.name else folder.path.name,
        program=program,
    )


def _without_name(fixed: Sequence[str]) -> list[str]:
    return [word for word in fixed if not word.startswith("run.name=")]


def _require_resumable(config: RunConfig) -> None:
    if config.resume != "auto":
        raise ConfigurationError(
            f"resume={config.resume} is of a single run: a search goes on by the same command; leave it out, or choose "
            "another run.name to start anew."
        )


def _rounds(config: RunConfig, settings: SearchSettings) -> list[int]:
    """Return the validations at which halving's rounds end; one round for all else.

    Raises:
        ConfigurationError: The run lacks what the metric or the pruner needs.
    """
    facts, validation = callback_facts(config), held_out_passes(config)
    require_metric(config, settings)
    if settings.pruner == "none":
        return [1]
    if not any(each.stops_on_signals for each in facts):
        raise ConfigurationError(
            f"sweep.pruner={settings.pruner} stops runs through callbacks.graceful_stop, which is switched off."
        )
    if not settings.metric.startswith("validation/"):
        raise ConfigurationError(
            f"sweep.pruner={settings.pruner} judges validations; nearest valid: sweep.metric=validation/bits_per_byte."
        )
    passes = validation.num_passes if validation else None
    if settings.pruner == "median":
        if passes is not None and passes < 2:
            raise ConfigurationError(
                "sweep.pruner=median needs a validation during the run; nearest valid: "
                "callbacks.validation.num_passes=4."
            )
        return [1]
    if passes is None:
        raise ConfigurationError(
            "sweep.pruner=halving needs evenly spread validations: callbacks.validation.every_steps=null and "
            "callbacks.validation.num_passes=4."
        )
    if config.budget.hours is not None or config.budget.usd is not None:
        raise ConfigurationError(
            "sweep.pruner=halving needs a known number of steps; give the runs a budget of steps, tokens or FLOPs."
        )
    return round_ends(passes, factor=settings.halving_factor)


def _allowance(config: RunConfig, settings: SearchSettings) -> Allowance:
    price = config.cluster.usd_per_gpu_hour
    hourly = usd(SECONDS_PER_HOUR, num_devices=config.num_ranks, usd_per_gpu_hour=price) if price else None
    return Allowance(settings=settings, planned_seconds=None, usd_per_hour=hourly)


def runner_of(config: RunConfig, settings: SearchSettings, folder: Path) -> Runner:
    """Return the place of a sweep's runs, on this machine or in SLURM's queue."""
    uses_gpus = device_type(config.trainer.accelerator) != "cpu"
    if settings.launcher == "slurm":
        require_slurm()
        return SlurmRunner(
            folder=folder / "slurm",
            parameters=settings.slurm or {},
            num_devices=config.trainer.devices,
            uses_gpus=config.cluster.device is not None and config.trainer.accelerator != "cpu",
        )
    return LocalRunner(
        parallel=settings.parallel, num_devices=config.trainer.devices, num_gpus=_num_gpus() if uses_gpus else 0
    )


def _num_gpus() -> int:
    import torch

    return torch.accelerator.device_count()
