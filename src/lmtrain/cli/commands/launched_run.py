"""The run of a launch's command line, checked as far as a machine without training can."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtrain.errors import ConfigurationError
from lmtrain.launch.nodes import NodesJob
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.flags import parse_flags
from lmtrain.run.compose.meant import MeantWord
from lmtrain.tracking.redacting.redaction import redact_override
from lmtrain.tracking.run_folder import run_path

if TYPE_CHECKING:
    from lmtrain.run.compose.compose import Choices
    from lmtrain.run.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class LaunchedRun:
    """A run to start on nodes, and the folder of its runs."""

    job: NodesJob
    root: Path


def launched_run(
    words: list[str], *, program: str, is_here: bool, known_flags: Sequence[str] = ()
) -> LaunchedRun | None:
    """Compose a command line, check it as `plan` does, and return its run; None where only the config is asked for.

    `is_here`: the nodes see this machine's files, and so typed paths are looked at. `known_flags`: the launch's own.

    Raises:
        ConfigurationError: A wrong word, a sweep, a secret, or nodes unlike the cluster's.
        DataError: No data at a path.
    """
    for word in words:
        _require_no_secret(word)
    try:
        arguments = parse_arguments(words)
    except MeantWord as refused:
        raise (refused.foreign.on_nodes() if refused.foreign else refused) from None
    parse_flags(arguments.flags, program=program, others=known_flags)
    from lmtrain.run.compose.compose import for_each_config

    found: list[tuple[dict[str, Any], Choices]] = []
    for_each_config(lambda *one: found.append(one), arguments, config_name="train")
    if not found:
        return None
    ((values, choices), *others) = found
    if others or choices.is_trial:
        raise ConfigurationError(f"{program} starts one run; nearest valid: a command for each value of the sweep.")
    typed = [word for word in choices.overrides if word not in arguments.not_typed]
    from lmtrain.cli.commands.train import run_name
    from lmtrain.run.builders.strategy import require_strategy_on_paper
    from lmtrain.run.gate import check
    from lmtrain.run.validators.ranks import require_cluster

    place = "nodes" if is_here else "paper"
    config = check(values, allowed=arguments.allowed_targets, typed=typed, place=place)
    name = run_name(config, typed, choices.options["model"], None)
    root = Path(config.run.root)
    run_path(root.absolute(), name)
    require_cluster(config)
    _tell_misfits(words)
    require_strategy_on_paper(config)  # the ranks would refuse after their wait in a queue
    named = words if config.run.name else [*words, f"run.name={name}"]
    job = NodesJob(
        name=name,
        words=named,
        num_nodes=config.trainer.num_nodes,
        ranks_per_node=config.trainer.devices,
        device=_device(config),
    )
    return LaunchedRun(job=job, root=root)


def _require_no_secret(word: str) -> None:
    if redact_override(word) != word:
        key = word.partition("=")[0]
        raise ConfigurationError(
            f"{key} holds a secret, and a launch's words stand in a file; nearest valid: '{key}=${{oc.env:NAME}}', "
            "with NAME set in the environment of the nodes."
        )


def _device(config: "RunConfig") -> str | None:
    """Return the nodes' GPU; None for nodes without one, "" for one without a name."""
    word = config.trainer.accelerator
    if word == "cpu":
        return None
    if word == "auto" and config.cluster.device is None:
        raise ConfigurationError(
            f"cluster={config.cluster.name} does not say whether the nodes have GPUs; nearest valid: one of `lmtrain "
            "train --help cluster` that does, as cluster=h100_8x or cluster=cpu."
        )
    return config.cluster.device or ""


def _tell_misfits(words: list[str]) -> None:
    """Plan the run, with its refusals, and say where it does not fit its devices or its budget."""
    from lmtrain.cli.commands.plan import start_of
    from lmtrain.run.planning.plan import planned_runs

    for run in planned_runs(words, start_of=start_of):
        if not run.advice.is_possible:
            of_trial = f" of {run.title}" if run.swept else ""
            print("\n".join((f"the plan{of_trial} does not fit:", *run.advice.lines)), file=sys.stderr)
