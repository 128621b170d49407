"""`lmtrain train`: train a model, or one a trial of a sweep."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmtrain.composition.command_line.arguments import Arguments, parse_arguments
from lmtrain.composition.command_line.help import HELP_FLAGS, help_page
from lmtrain.composition.command_line.paths import conf_folder
from lmtrain.composition.execution.caches import keep_caches_in
from lmtrain.composition.stored_runs.job import Job, default_name, short_hash
from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.launch.detect import OuterLauncher, outer_launcher
from lmtrain.tracking.redaction import redact_text


def train(words: list[str], *, program: str = "lmtrain train") -> int:
    """Train a language model, or one a trial under -m; the worst trial's exit code counts.

    Raises:
        ConfigurationError: The command line is wrong; nothing was started.
    """
    began = time.time()
    if HELP_FLAGS & set(words):
        print(help_page(conf_folder(), program=program, words=words))
        return 0
    # Read once, when torch is imported. OpenMP threads that wait for one another spin for long by default: where other
    # work shares the cores, that halves the speed; a short spin costs nothing on an idle machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    outer = outer_launcher(os.environ)
    world = (outer.local_world_size, outer.world_size // outer.local_world_size) if outer else None
    arguments = parse_arguments(words, world=world)
    from lmtrain.composition.command_line.compose import Choices, for_each_config

    outcomes: dict[str, int] = {}
    trials: list[Job] = []

    def task(config: dict[str, Any], choices: Choices) -> None:
        typed = [word for word in choices.overrides if word not in arguments.not_typed]
        job = make_job(config, typed, choices.options["model"], arguments, is_trial=choices.is_trial)
        job = replace(job, program=program, **({} if choices.is_trial else {"started_at": began}))
        if choices.is_trial:
            trials.append(job)
        outcomes[job.name] = _outcome(job, outer, is_trial=choices.is_trial)

    for_each_config(task, arguments, config_name="train", program=program)
    if trials:
        print_outcomes(outcomes)
        print(f"  side by side: lmtrain compare {trials[-1].config['run']['root']}/{trials[-1].sweep}")
        finish_sweep(trials[-1], max(outcomes.values()))
    return max(outcomes.values(), default=0)


def make_job(config: dict[str, Any], overrides: list[str], model: str, arguments: Arguments, *, is_trial: bool) -> Job:
    """Check a composed config and give its run a name; trials that share a given name get a folder below it."""
    keep_caches_in(Path(str(config["run"]["cache"])))  # before the import of torch's compiler, which settles on its own
    from lmtrain.composition.execution.start import check_config

    checked = check_config(config, allowed=arguments.allowed_targets, typed=overrides)
    unnamed = default_name(model, overrides)
    given = checked["run"]["name"]
    name = unnamed if given is None else f"{given}/{unnamed}" if is_trial else given
    return Job(
        config=checked,
        overrides=overrides,
        name=name,
        root=str(Path(checked["run"]["root"]).absolute()),
        allowed_targets=arguments.allowed_targets,
        sweep=f"sweep-{short_hash(sorted(arguments.overrides))}" if is_trial else None,
    )


def finish_sweep(trial: Job, code: int) -> None:
    """Give the run that a sweep's trials hang under its last state."""
    from lmtrain.composition.nodes.instantiate import instantiate
    from lmtrain.tracking.status import status_name

    logger = instantiate(trial.config["logger"], key="logger")
    logger.finish_sweep(Path(trial.root), trial.sweep, status=status_name(code))


def print_outcomes(outcomes: dict[str, int]) -> None:
    """Print one line a trial: its name and how it ended."""
    width = max(map(len, outcomes))
    for name, code in outcomes.items():
        print(f"  {name:<{width}}  {'done' if code == 0 else f'failed, exit code {code}'}")


def _outcome(job: Job, outer: OuterLauncher | None, *, is_trial: bool) -> int:
    if not is_trial:
        return _begin(job, outer)
    try:  # a failing trial does not end the sweep
        return _begin(job, outer, isolated=outer is None)
    except LMTRAIN_ERRORS as error:
        print(redact_text(f"{job.name}: {error}"), file=sys.stderr)
        return error.exit_code


def _begin(job: Job, outer: OuterLauncher | None, *, isolated: bool = False) -> int:
    """Try what each step needs while nothing is written yet, then start the job."""
    from lmtrain.composition.execution.rehearsal import rehearse
    from lmtrain.composition.execution.start import start

    rehearse(job, is_alone=outer is None and not isolated and job.config["trainer"]["devices"] == 1)
    return start(job, outer=outer, isolated=isolated)
