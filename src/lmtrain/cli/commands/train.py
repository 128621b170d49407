"""`lmtrain train`: train a model, or one a trial of a sweep."""

import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lmtrain.cli.help import HELP_FLAGS, help_page
from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, EnvironmentProblem
from lmtrain.json_output import print_json
from lmtrain.launch.detect import AGENT, OuterLauncher, outer_launcher
from lmtrain.run.compose.arguments import Arguments, Choices, parse_arguments
from lmtrain.run.compose.paths import conf_folder, key_of
from lmtrain.run.execution.caches import keep_caches_in
from lmtrain.tracking.redaction import redact_text
from lmtrain.training.lifetime import die_with_parent

if TYPE_CHECKING:
    from lmtrain.run.run_config import RunConfig
    from lmtrain.run.stored_runs.job import Job


def train(words: list[str], *, program: str = "lmtrain train") -> int:
    """Train a language model, or one a trial under -m; --json ends with a line of the outcome."""
    if "--json" not in words:
        return _train(words, program=program)
    from lmtrain.cli.commands.outcome import outcome_line

    outer, known = outer_launcher(os.environ), list[Path]()
    code, message = 1, None
    try:
        code = _train([word for word in words if word != "--json"], program=program, tell=known.append)
    except LMTRAIN_ERRORS as error:
        code, message = error.exit_code, redact_text(str(error))
        raise
    finally:
        if outer is None or outer.rank == 0:
            print_json(outcome_line(known[-1] if known else None, code, message))
    return code


def _train(words: list[str], *, program: str, tell: Callable[[Path], None] = lambda _: None) -> int:
    """Train; all trials are checked first, and the worst exit code counts.

    `tell` learns the folder, once known.
    """
    began = time.monotonic()
    if HELP_FLAGS & set(words):
        print(help_page(conf_folder(), program=program, words=words))
        return 0
    # Read once, when torch is imported. Waiting OpenMP threads spin for long by default: where other
    # work shares the cores, that halves the speed; a short spin costs nothing on an idle machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if AGENT in os.environ:
        die_with_parent(os.getppid())  # torchrun, killed, would leave its ranks training
    outer = outer_launcher(os.environ)
    world = (outer.local_world_size, outer.world_size // outer.local_world_size) if outer else None
    arguments = parse_arguments(words, world=world)
    if arguments.continued and not arguments.show and (outer is None or outer.rank == 0):
        print(f"its own options: {shlex.join(arguments.continued)}", flush=True)
    if arguments.is_sweep and outer is not None:
        raise EnvironmentProblem("-m starts the ranks of its trials itself; run it once, without torchrun or srun.")
    from lmtrain.run.compose.search_words import grid_settings, search_of

    if (searched := search_of(arguments)) is not None:
        from lmtrain.run.sweeps.search import run_search

        return run_search(searched, partial(one_job, is_trial=True), program=program, tell=tell)
    settings, arguments = grid_settings(arguments)
    jobs = [replace(job, began=began, program=program) for job in jobs_of(arguments, outer=outer)]
    if not jobs:  # --cfg has printed the config
        return 0
    if jobs[0].sweep is not None:
        from lmtrain.run.sweeps.grid import grid_folder, run_grid

        tell(grid_folder(jobs[0]))
        return run_grid(jobs, settings)
    from lmtrain.run.execution.start import start

    tell(jobs[0].folder)
    return start(jobs[0], outer=outer)


def one_job(arguments: Arguments, *, is_trial: bool = False) -> "Job":
    """Return the job of a command line, or of a search's trial."""
    if arguments.is_sweep:
        raise ConfigurationError("-m gives several runs; a sweep is for `lmtrain train -m`.")
    (job,) = jobs_of(arguments, is_trial=is_trial)
    return job


def jobs_of(arguments: Arguments, *, outer: OuterLauncher | None = None, is_trial: bool = False) -> "list[Job]":
    """Compose, check and build on the meta device the job of a command line, or of each of a grid's trials.

    `is_trial`: it is one of a search. None are returned where --cfg prints the config.
    """
    from lmtrain.run.gate import checked_configs, naming_trial

    found = checked_configs(arguments, even_shown=True)
    if arguments.show:
        return []
    from lmtrain.run.stored_runs.find_run import require_own_folder
    from lmtrain.run.stored_runs.resume import require_begun
    from lmtrain.run.validators.parallelism import require_launcher

    typed, jobs = [choices.typed for _, choices in found], list["Job"]()
    for number, (config, choices) in enumerate(found):
        is_apart = choices.is_trial or is_trial
        with naming_trial(typed, number) if choices.is_trial else nullcontext():
            require_launcher(config.trainer, is_launched=outer is not None)
            job = make_job(config, choices, arguments, trials=typed if is_apart else None)
            if config.resume == "must":
                require_begun(job.folder)
            if not is_apart:
                require_own_folder(job.folder, root=Path(job.root))
            from lmtrain.run.execution.meta_build import build_on_meta  # torch: after the checks without it

            is_alone = not is_apart and outer is None and config.trainer.devices == 1
            jobs.append(build_on_meta(job, is_alone=is_alone))
    return jobs


def run_name(config: "RunConfig", choices: Choices, trials: Sequence[Sequence[str]] | None = None) -> str:
    """Return a run's name: as given, else after its model and overrides; a trial's is in a folder of a given one.

    `trials` are the overrides of all trials of its sweep.
    """
    from lmtrain.run.stored_runs.job import default_name

    keys = [key_of(word) for word in {word for trial in trials or () for word in trial}]
    unnamed = default_name(choices.options["model"], choices.typed, swept={key for key in keys if keys.count(key) > 1})
    given = config.run.name
    return unnamed if given is None else given if trials is None else f"{given}/{unnamed}"


def make_job(
    config: "RunConfig", choices: Choices, arguments: Arguments, *, trials: Sequence[Sequence[str]] | None = None
) -> "Job":
    """Choose a checked run's strategy where it is to be chosen, and return its job; `trials` as in `run_name`."""
    keep_caches_in(Path(config.run.cache))  # before the import of torch's compiler, which reads it once
    from lmtrain.run.planning.strategy_choice import with_strategy
    from lmtrain.run.stored_runs.job import Job, short_hash

    name = run_name(config, choices, trials)
    config, chosen = with_strategy(config)
    outer = outer_launcher(os.environ)
    if chosen and trials is None and (outer is None or outer.rank == 0):
        print(chosen, flush=True)
    return Job(
        config=config,
        overrides=choices.typed,
        name=name,
        root=str(Path(config.run.root).absolute()),
        sweep=None if trials is None else f"sweep-{short_hash(sorted(arguments.overrides))}",
        config_dir=arguments.config_dir,
    )
