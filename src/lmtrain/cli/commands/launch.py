"""`lmtrain launch TARGET OVERRIDES`: one command for a run on several nodes.

Nodes, ranks and GPUs come from the config that the ranks themselves compose, and so agree with the Trainer's.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.cli.commands.launched_run import launched_run
from lmtrain.errors import EXIT_DONE, ConfigurationError, suggest
from lmtrain.launch import kubernetes, sky
from lmtrain.launch.nodes import PORT
from lmtrain.launch.sbatch import SIGNAL_SECONDS, BatchLimits, batch_script, read_directives, require_sbatch, submit
from lmtrain.launch.sbatch_flags import refuse_flags_of_sbatch, seconds_of_clock
from lmtrain.launch.yaml_text import to_yaml
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.compose.flags import known_flags
from lmtrain.run.compose.foreign.table import name_elsewhere, options_of
from lmtrain.run.compose.help import HELP_FLAGS, verb_page
from lmtrain.run.compose.paths import is_key_of_training
from lmtrain.tracking.atomic_files import write_text

DRY_RUN: Final = "--dry-run"
SCRIPTS: Final = ".launch"  # below run.root


def launch(words: list[str], *, program: str = "lmtrain launch") -> int:
    """Start a run on several nodes, or print its command or manifest.

    Raises:
        ConfigurationError: The command line is wrong; nothing was written or submitted.
        EnvironmentProblem: This machine cannot submit.
    """
    if not words or HELP_FLAGS & set(words):
        print(verb_page("launch", program=program))
        return EXIT_DONE
    target, *rest = words
    if target not in TARGETS:
        meant = CALLED.get(target, "slurm")
        raise ConfigurationError(
            f"{program} {target}: a launch goes to {', '.join(TARGETS)}.{suggest(target, TARGETS)} Write {program} "
            f"{meant} {shlex.join(words if '=' in target else rest)}".rstrip()
        )
    return TARGETS[target](rest, f"{program} {target}")


def slurm(words: list[str], program: str) -> int:
    """Write a batch script and submit it."""
    parser = _parser(program)
    parser.add_argument("--time")
    parser.add_argument("--signal-before", default=f"{SIGNAL_SECONDS}s")
    parser.add_argument("--cpus-per-task", type=int)
    parser.add_argument("--sbatch", action="append", default=[])
    refuse_flags_of_sbatch(words, known=parser.known, is_other=_is_elsewhere)
    asked, overrides = parser.taken(words)
    limits = BatchLimits(
        time_seconds=None if asked.time is None else seconds_of_clock(asked.time) or _seconds(asked.time, "--time"),
        signal_seconds=_seconds(asked.signal_before, "--signal-before"),
        cpus_per_task=asked.cpus_per_task,
        directives=read_directives(asked.sbatch),
    )
    if not asked.dry_run:
        require_sbatch()
    run = launched_run(overrides, program=program, is_here=True, known_flags=parser.known)
    if run is None:
        return EXIT_DONE
    folder = run.root / SCRIPTS
    name = run.job.name.replace("/", "-")
    script = batch_script(run.job, limits, python=sys.executable, log=folder / f"{name.replace('%', '%%')}-%j.log")
    path = folder / f"{name}.sbatch"
    if asked.dry_run:
        return _tell(asked, script.rstrip(), {"script": script})
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, script)
    number = submit(path)
    log = folder / f"{name}-{number}.log"
    told = f"job {number}: {path}, its output {log}; scancel {number} stops it"
    return _tell(asked, told, {"job": number, "script": str(path), "log": str(log)})


def torchrun(words: list[str], program: str) -> int:
    """Become this node's torchrun, or print every node's."""
    parser = _parser(program)
    parser.add_argument("--address")
    parser.add_argument("--node-rank", type=int)
    asked, overrides = parser.taken(words)
    host, port = _address(asked.address)
    run = launched_run(overrides, program=program, is_here=True, known_flags=parser.known)
    if run is None:
        return EXIT_DONE
    ranks = range(run.job.num_nodes)
    if len(ranks) > 1 and not host:
        raise ConfigurationError(f"{program} needs --address=HOST, the first node's name or address, to meet at.")
    node = 0 if len(ranks) == 1 and asked.node_rank is None else asked.node_rank
    if node not in ranks and (node is not None or not asked.dry_run):
        said = f"{program} needs --node-rank, one" if node is None else f"--node-rank={node} is none"
        raise ConfigurationError(
            f"{said} of this run's nodes, 0 to {len(ranks) - 1}; every node takes its own number, and {DRY_RUN} prints "
            "the commands of all."
        )
    commands = [
        run.job.torchrun(sys.executable, node_rank=str(rank), address=host or "127.0.0.1", port=port) for rank in ranks
    ]
    if asked.dry_run or node is None:
        shown = "\n".join(f"# node {rank}\n{shlex.join(commands[rank])}" for rank in ranks)
        return _tell(asked, shown, {"commands": commands})
    os.execv(sys.executable, commands[node])  # noqa: S606  every word as it is: no shell
    return EXIT_DONE


def k8s(words: list[str], program: str) -> int:
    """Print the objects for `kubectl apply -f -`."""
    parser = _parser(program)
    parser.add_argument("--image")
    parser.add_argument("--claim")
    asked, overrides = parser.taken(words)
    for flag, value in (("--image=NAME, with lmtrain in it", asked.image), ("--claim=NAME, of a volume", asked.claim)):
        if not value:
            raise ConfigurationError(f"{program} needs {flag}.")
    run = launched_run(overrides, program=program, is_here=False, known_flags=parser.known)
    if run is None:
        return EXIT_DONE
    objects = kubernetes.objects(run.job, image=asked.image, claim=asked.claim)
    return _tell(asked, to_yaml(*objects).rstrip(), {"objects": objects})


def skypilot(words: list[str], program: str) -> int:
    """Print the task for `sky launch`."""
    sky.refuse_flags_of_sky(words, options_of("cluster"))
    parser = _parser(program)
    asked, overrides = parser.taken(words)
    run = launched_run(overrides, program=program, is_here=False, known_flags=parser.known)
    if run is None:
        return EXIT_DONE
    task = sky.task(run.job)
    return _tell(asked, to_yaml(task).rstrip(), task)


TARGETS: Final[dict[str, Callable[[list[str], str], int]]] = {
    "slurm": slurm,
    "torchrun": torchrun,
    "k8s": k8s,
    "sky": skypilot,
}

CALLED: Final = {"kubernetes": "k8s", "kubectl": "k8s", "skypilot": "sky", "local": "torchrun", "elastic": "torchrun"}


def _is_elsewhere(flag: str) -> bool:
    """Tell a flag of other programs, or a key of ours, by its name."""
    name = flag.replace("-", "_")
    return "." in name or bool(name_elsewhere(name)) or is_key_of_training(name) or f"--{flag}" in known_flags()


def _tell(asked: argparse.Namespace, text: str, values: Mapping[str, Any]) -> int:
    """Print a text for people, or one object of its values."""
    print(json.dumps(values) if asked.json else text)
    return EXIT_DONE


def _parser(program: str) -> FlagParser:
    parser = FlagParser(prog=program, add_help=False, allow_abbrev=False)
    parser.add_argument(DRY_RUN, action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser


def _seconds(text: str, flag: str) -> float:
    return float(parse_quantity(text, flag, unit="seconds"))


def _address(text: str | None) -> tuple[str, int]:
    """Return the host and the port of HOST or HOST:PORT; an address of IPv6 with a port stands in brackets."""
    host, colon, port = (text or "").rpartition(":")
    if not colon or port.endswith("]") or (":" in host and not host.startswith("[")):
        return (text or "").strip("[]"), PORT
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigurationError(
            f"--address={text}: {port!r} is no port from 1 to 65535; nearest valid: {host}:{PORT}."
        )
    return host.strip("[]"), int(port)
