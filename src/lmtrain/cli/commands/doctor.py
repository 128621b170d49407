"""`lmtrain doctor OVERRIDES`: is this machine ready for a long run of a config? It also measures the machine."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from lmtrain.accounting.observed.measured import MeasuredDevice
from lmtrain.accounting.options.parts import CompileFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.quantities import format_count
from lmtrain.cli.help import run_parser
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError
from lmtrain.json_output import print_json
from lmtrain.launch.detect import outer_launcher
from lmtrain.run.compose.arguments import Arguments, parse_arguments
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.planning.plan import plan_of
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import RunConfig
from lmtrain.tracking.machine import read_measurements, write_measurements

if TYPE_CHECKING:
    from lmtrain.doctor.checks import Finding
    from lmtrain.doctor.nodes import RankRates, SlowestRank

FLEET: Final = "conf/cluster/measured.yaml"
STYLES: Final = {"ok": "green", "warn": "yellow", "bad": "bold red"}


def doctor(words: list[str], *, program: str = "lmtrain doctor") -> int:
    """Check and measure; return 1 if something prevents a run."""
    parser = run_parser("doctor", program, end="Ends with 1 where something is in the way of the run.")
    parser.add_argument("--nodes", action="store_true", help="measure all ranks together, under torchrun or srun")
    parser.add_argument("--fleet", default=FLEET, metavar="FILE", help=f"what --nodes writes, for plans [{FLEET}]")
    asked, overrides = parser.taken(words)
    arguments = parse_arguments(overrides)
    if asked.nodes:
        return _nodes(arguments, Path(asked.fleet), as_json=asked.json)
    from lmtrain.run.gate import checked_configs

    codes: list[int] = []
    for config, _ in checked_configs(arguments):
        sys.stderr.write("measuring this machine until two results agree ...\n")
        from lmtrain.doctor.measure import measure_until_two_agree  # torch

        device, measured = measure_until_two_agree(partial(_measure, config))
        cache = Path(config.run.cache)
        write_measurements(cache, read_measurements(cache).with_device(device))
        findings = [*examine(config), measured]
        is_ready = all(finding.state != "bad" for finding in findings)
        _show(findings, device, as_json=asked.json, is_ready=is_ready)
        codes.append(EXIT_DONE if is_ready else EXIT_NO)
    return max(codes, default=EXIT_DONE)


def _nodes(arguments: Arguments, fleet: Path, *, as_json: bool) -> int:
    """Measure every rank of this job, name the slowest, and write the group `cluster`'s file of the fleet."""
    from lmtrain.run.gate import checked_configs

    (config, _), *_ = checked_configs(arguments, place="paper")
    outer = outer_launcher(os.environ)
    if outer is None or outer.world_size < 2:
        raise ConfigurationError(
            "doctor --nodes: must be started once per device by a launcher, as `srun lmtrain doctor --nodes` or "
            "`torchrun --nproc-per-node=8 -m lmtrain.cli doctor --nodes`."
        )
    from lmtrain.doctor.nodes import fleet_of, measure_ranks, slowest, to_json  # torch
    from lmtrain.launch.process_group import join, leave

    join(outer, variables=config.cluster.environment)
    ranks = measure_ranks(outer, Path(config.run.root))
    leave()
    if outer.rank:
        return EXIT_DONE
    slow = slowest(ranks, config.cluster)
    fleet.parent.mkdir(parents=True, exist_ok=True)
    fleet.write_text(yaml.safe_dump(fleet_of(ranks, config.cluster, name=fleet.stem), sort_keys=False))
    if as_json:
        print_json(to_json(ranks, slow, fleet))
    else:
        _show_ranks(ranks, slow)
        print(f"wrote {fleet}: `lmtrain plan --config-dir {fleet.parents[1]} cluster={fleet.stem}`")
    return EXIT_DONE


def _show_ranks(ranks: Sequence["RankRates"], slow: "SlowestRank | None") -> None:
    from rich.table import Table

    from lmtrain.report.show import literal_console

    titles = ("rank", "node", "host", "device", "TFLOP/s", "memory GB/s", "disk GB/s", "in node GB/s", "between GB/s")
    table = Table(*titles, box=None)
    for one in ranks:
        rates = (one.products / 1e12, *(rate and rate / 1e9 for rate in astuple(one)[5:]))
        table.add_row(
            str(one.rank), str(one.node), one.host, one.device, *(f"{rate:.3g}" if rate else "-" for rate in rates)
        )
    literal_console().print(table)
    print(f"\n{slow.words}" if slow else "\nall ranks are near the median")


def _measure(config: RunConfig) -> MeasuredDevice:
    """Measure the device of a run of the config once."""
    from lmtrain.doctor.checks import gpus  # torch
    from lmtrain.doctor.measure import measure_cpu, measure_gpu

    if gpus() and config.trainer.accelerator != "cpu":
        return measure_gpu()
    return measure_cpu(threads=config.trainer.cpu_threads, num_ranks=config.trainer.devices)


def examine(config: RunConfig) -> list["Finding"]:
    """Make every check for a run of the config on this machine."""
    from lmtrain.doctor import checks  # torch

    trainer, root = config.trainer, Path(config.run.root)
    setting = planned_setting(config)
    found = checks.gpus()
    lacking = checks.lacking_formats(found)
    num_ranks, num_workers = trainer.devices, int(config.data.get("num_workers") or 0)
    checkpoints = plan_of(config)[0].checkpoints
    assert checkpoints is not None
    fitting = words_of(PrecisionFacts, lambda each: each.bytes_of.matmul not in lacking, has_bf16="bf16" not in lacking)
    return [
        checks.driver(found, checks.nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")),
        checks.precision_support(lacking, wanted=setting.precision, fitting=one_of(fitting)),
        *checks.links(
            len(found),
            checks.nvidia_smi("topo", "-m"),
            num_nodes=trainer.num_nodes,
            whole_copies=one_of(words_of(ModelSpread, lambda each: each.replicates)),
        ),
        checks.compiler(without=one_of(words_of(CompileFacts, lambda each: not each.compiles))),
        checks.cores(num_ranks),
        checks.shared_memory(num_processes=num_ranks * (1 + num_workers)),
        checks.open_files(),
        checks.disk_room(root, needed_bytes=checkpoints.kept_bytes),
        checks.disk_speed(root, checkpoint_bytes=checkpoints.checkpoint_bytes),
    ]


def _show(findings: Sequence["Finding"], device: MeasuredDevice, *, as_json: bool, is_ready: bool) -> None:
    if as_json:
        measured = {"kind": device.kind, "name": device.name, "threads": device.threads}
        measured |= {"matmul_flops": dict(device.matmul_flops), "copy_bytes_per_second": device.copy_bytes_per_second}
        checks = [asdict(finding) for finding in findings]
        print_json({"ok": is_ready, "checks": checks, "measured": measured})
        return
    from rich.table import Table
    from rich.text import Text

    from lmtrain.report.show import literal_console

    table = Table.grid(padding=(0, 2, 0, 0))
    for finding in findings:
        table.add_row(Text(finding.state, style=STYLES[finding.state]), finding.name, finding.found)
        if finding.fix:
            table.add_row("", "", Text(f"-> {finding.fix}", style="bold"))
    console = literal_console()
    console.print(table)
    console.print(Text(f"\nmeasured: {measured_line(device)}"))
    console.print(Text(f"\n{verdict(findings)}", style="bold"))


def measured_line(device: MeasuredDevice) -> str:
    """Return the line of a device's measurements."""
    peaks = ", ".join(f"{flops / 1e12:.3g} TFLOP/s in {dtype}" for dtype, flops in device.matmul_flops.items())
    threads = "" if device.threads is None else f" on {format_count(device.threads, 'thread')}"
    copy = "" if device.copy_bytes_per_second is None else f"; copies at {device.copy_bytes_per_second / 1e9:.3g} GB/s"
    return f"{device.name}{threads}: {peaks}{copy}"


def verdict(findings: Sequence["Finding"]) -> str:
    """Count the bad findings and warnings."""
    num_bad = sum(finding.state == "bad" for finding in findings)
    num_warnings = sum(finding.state == "warn" for finding in findings)
    if num_bad:
        return f"not ready: {format_count(num_bad, 'problem')}, {format_count(num_warnings, 'warning')}"
    return f"ready, {format_count(num_warnings, 'warning')}" if num_warnings else "ready"
