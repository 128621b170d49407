"""`lmtrain launch TARGET OVERRIDES`: one command for a run on several nodes.

Nodes, ranks and GPUs come from the config that the ranks themselves compose, so they agree with the Trainer's.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import yaml

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.cli.help import HELP_FLAGS, run_parser
from lmtrain.errors import EXIT_DONE, ConfigurationError, suggest
from lmtrain.json_output import print_json
from lmtrain.launch.nodes import PORT, NodesJob, kubernetes_manifest, sky_task
from lmtrain.launch.sbatch import (
    SIGNAL_SECONDS,
    BatchLimits,
    batch_script,
    require_sbatch,
    seconds_of_clock,
    submit,
)
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.redaction import redact_override
from lmtrain.tracking.run_folder import run_path

if TYPE_CHECKING:
    from lmtrain.run.run_config import RunConfig

DRY_RUN: Final = "--dry-run"
SCRIPTS: Final = ".launch"  # below run.root


def launch(words: list[str], *, program: str = "lmtrain launch") -> int:
    """Start a run on several nodes, or print its command or manifest."""
    target, *rest = words or ["--help"]
    if target in HELP_FLAGS:
        lines = [f"    {name:<9} {start.__doc__}" for name, start in TARGETS.items()]
        run_parser("launch", f"{program} TARGET", end="\n".join(lines)).print_help()
        return EXIT_DONE
    if target not in TARGETS:
        raise ConfigurationError(
            f"{program} {target}: the target must be one of {', '.join(TARGETS)}.{suggest(target, TARGETS)}"
        )
    return TARGETS[target](rest, f"{program} {target}")


def slurm(words: list[str], program: str) -> int:
    """Write a batch script and submit it."""
    parser = _parser(program)
    parser.add_argument("--time", metavar="24h", help="limit; without it, the queue's own")
    parser.add_argument("--signal-before", default=f"{SIGNAL_SECONDS}s", metavar="300s", help="of the limit, to save")
    parser.add_argument("--cpus-per-task", type=int, help="processor cores of a rank")
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="NAME=VALUE", help="another option, as partition=gpu"
    )
    asked, overrides = parser.taken(words)
    limits = BatchLimits(
        time_seconds=None if asked.time is None else seconds_of_clock(asked.time) or _seconds(asked.time, "--time"),
        signal_seconds=_seconds(asked.signal_before, "--signal-before"),
        cpus_per_task=asked.cpus_per_task,
        directives=dict(word.partition("=")[::2] for word in asked.sbatch),
    )
    run = launched_run(overrides, program=program, is_here=True)
    if run is None:
        return EXIT_DONE
    if not asked.dry_run:
        require_sbatch()
    folder = run.root / SCRIPTS
    name = run.name.replace("/", "-")
    script = batch_script(run, limits, python=sys.executable, log=folder / f"{name.replace('%', '%%')}-%j.log")
    path = folder / f"{name}.sbatch"
    if asked.dry_run:
        return _show(asked, script.rstrip(), {"script": script})
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, script)
    number = submit(path)
    log = folder / f"{name}-{number}.log"
    line = f"job {number}: {path}, its output {log}; scancel {number} stops it"
    return _show(asked, line, {"job": number, "script": str(path), "log": str(log)})


def torchrun(words: list[str], program: str) -> int:
    """Become this node's torchrun, or print every node's."""
    parser = _parser(program)
    parser.add_argument("--address", metavar="HOST[:PORT]", help="of the first node")
    parser.add_argument("--node-rank", type=int, help="this node's number, from 0")
    asked, overrides = parser.taken(words)
    host, port = _address(asked.address)
    run = launched_run(overrides, program=program, is_here=True)
    if run is None:
        return EXIT_DONE
    ranks = range(run.num_nodes)
    if len(ranks) > 1 and not host:
        raise ConfigurationError(f"{program} needs --address=HOST, the first node's name or address.")
    node = 0 if len(ranks) == 1 and asked.node_rank is None else asked.node_rank
    if node not in ranks and (node is not None or not asked.dry_run):
        raise ConfigurationError(
            f"--node-rank: must be the number of this node, 0 to {len(ranks) - 1}, got {node}; {DRY_RUN} prints every "
            "node's command."
        )
    commands = [
        run.torchrun(sys.executable, node_rank=str(rank), address=host or "127.0.0.1", port=port) for rank in ranks
    ]
    if asked.dry_run or node is None:
        shown = "\n".join(f"# node {rank}\n{shlex.join(commands[rank])}" for rank in ranks)
        return _show(asked, shown, {"commands": commands})
    os.execv(sys.executable, commands[node])  # noqa: S606  no shell
    return EXIT_DONE


def k8s(words: list[str], program: str) -> int:
    """Print the objects for `kubectl apply -f -`."""
    parser = _parser(program)
    parser.add_argument("--image", help="with lmtrain in it")
    parser.add_argument("--claim", help="of a volume that all pods write")
    parser.add_argument("--queue", help="of Kueue, to start all pods together")
    parser.add_argument(
        "--resource", action="append", default=[], metavar="NAME=COUNT", help="of a pod, as cpu=96 or memory=1Ti"
    )
    asked, overrides = parser.taken(words)
    for flag, value in (("--image=NAME, with lmtrain in it", asked.image), ("--claim=NAME, of a volume", asked.claim)):
        if not value:
            raise ConfigurationError(f"{program} needs {flag}.")
    resources = dict(word.partition("=")[::2] for word in asked.resource)
    run = launched_run(overrides, program=program, is_here=False)
    if run is None:
        return EXIT_DONE
    manifest = kubernetes_manifest(run, image=asked.image, claim=asked.claim, queue=asked.queue, resources=resources)
    return _show(asked, manifest.rstrip(), {"objects": _documents(manifest)})


def skypilot(words: list[str], program: str) -> int:
    """Print the task for `sky launch`."""
    asked, overrides = _parser(program).taken(words)
    run = launched_run(overrides, program=program, is_here=False)
    if run is None:
        return EXIT_DONE
    task = sky_task(run)
    return _show(asked, task.rstrip(), _documents(task)[0])


TARGETS: Final[dict[str, Callable[[list[str], str], int]]] = {
    "slurm": slurm,
    "torchrun": torchrun,
    "k8s": k8s,
    "sky": skypilot,
}


def launched_run(words: list[str], *, program: str, is_here: bool) -> NodesJob | None:
    """Compose a command line, check it as `plan` does, and return its run; None if --cfg asks only for the config.

    `is_here`: the nodes see this machine's files, so paths on the command line are checked.
    """
    for word in words:
        _require_no_secret(word)
    arguments = parse_arguments(words, program=program)
    from lmtrain.run.gate import checked_configs

    found = checked_configs(arguments, place="nodes" if is_here else "paper")
    if not found:
        return None
    ((config, choices), *others) = found
    if others or choices.is_trial:
        raise ConfigurationError(f"{program} starts one run, not a sweep; launch each value by itself.")
    from lmtrain.cli.commands.train import run_name
    from lmtrain.run.builders.model import model_on_paper
    from lmtrain.run.stored_runs.initial_weights import find_weights
    from lmtrain.run.validators.parallelism import require_cluster

    name = run_name(config, choices)
    root = Path(config.run.root)
    run_path(root.absolute(), name)
    require_cluster(config)
    _warn_of_misfits(words)
    model = model_on_paper(config)  # the ranks would refuse only after their wait in a queue
    if is_here:
        find_weights(config.init_from, model)
    return NodesJob(
        name=name,
        root=root,
        words=words if config.run.name else [*words, f"run.name={name}"],
        num_nodes=config.trainer.num_nodes,
        ranks_per_node=config.trainer.devices,
        device=_device(config),
    )


def _require_no_secret(word: str) -> None:
    if redact_override(word) != word:
        key = word.partition("=")[0]
        raise ConfigurationError(
            f"{key}: must not hold a secret, because the launch writes it to a file; set '{key}=${{oc.env:NAME}}', and "
            "NAME in the environment of the nodes."
        )


def _device(config: "RunConfig") -> str | None:
    """Return the nodes' GPU; None for nodes without one, "" for an unnamed one."""
    accelerator = config.trainer.accelerator
    if accelerator == "cpu":
        return None
    if accelerator == "auto" and config.cluster.device is None:
        raise ConfigurationError(
            f"cluster={config.cluster.name} does not say whether the nodes have GPUs; set cluster=h100_8x, cluster=cpu "
            "or another option of `lmtrain train --help cluster`."
        )
    return config.cluster.device or ""


def _warn_of_misfits(words: list[str]) -> None:
    """Plan the run, and say if it does not fit its devices or its budget."""
    from lmtrain.run.planning.plan import planned_runs

    for run in planned_runs(words):
        if not run.advice.is_possible:
            print("\n".join(("the plan does not fit:", *run.advice.lines)), file=sys.stderr)


def _documents(text: str) -> list[Any]:
    return [*yaml.safe_load_all(text)]


def _show(asked: argparse.Namespace, text: str, values: Mapping[str, Any]) -> int:
    """Print a text for people, or one object of its values."""
    print_json(values) if asked.json else print(text)
    return EXIT_DONE


def _parser(program: str) -> FlagParser:
    parser = run_parser("launch", program)
    parser.add_argument(DRY_RUN, action="store_true", help="print; write, submit and start nothing")
    return parser


def _seconds(text: str, flag: str) -> float:
    return float(parse_quantity(text, flag, unit="seconds"))


def _address(text: str | None) -> tuple[str, int]:
    """Return the host and the port of HOST or HOST:PORT; an IPv6 address stands in brackets."""
    try:
        parts = urlsplit(f"//{text or ''}")
        return parts.hostname or "", parts.port or PORT
    except ValueError as problem:
        raise ConfigurationError(f"--address: must be HOST:PORT with a port from 1 to 65535, got {text}.") from problem
