"""`lmtrain doctor OVERRIDES`: is this machine ready for a long run of a config? It also measures, and calibrates."""

import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.measured import MeasuredDevice
from lmtrain.accounting.options.parts import CompileFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.cli.commands.calibrate import FEWEST_STEPS, calibrate
from lmtrain.doctor.disk import disk_speed, room
from lmtrain.doctor.finding import Finding
from lmtrain.doctor.limits import cores, open_files, scheduler, shared_memory
from lmtrain.doctor.settled import Settled, measure_until_two_agree
from lmtrain.doctor.software import compiler, flash_attention, package_versions, python_version
from lmtrain.doctor.store import tracking_store
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.compose.help import HELP_FLAGS, verb_page
from lmtrain.run.planning.known_models import model_facts
from lmtrain.run.planning.plan import plan_on_paper
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import RunConfig
from lmtrain.tracking.measurements import read_measurements, write_measurements
from lmtrain.tracking.mlflow.client import default_uri

FLAGS: Final = ("--json", "--calibrate")


@dataclass(frozen=True)
class DoctorArguments:
    """The doctor's own words on the command line, and the rest: overrides of a run.

    `calibration_steps` None is as many as are worth timing.
    """

    as_json: bool
    calibrates: bool
    calibration_steps: int | None
    overrides: list[str]


def doctor(words: list[str], *, program: str = "lmtrain doctor") -> int:
    """Check, measure and, if asked, calibrate; answer 1 where something is in the way of a run.

    Raises:
        ConfigurationError: The command line is wrong.
        EnvironmentProblem: The measurements cannot be kept, or the steps of a calibration failed.
    """
    if HELP_FLAGS & set(words):
        print(verb_page("doctor", program=program))
        return EXIT_DONE
    asked = read_words(words)
    arguments = parse_arguments(asked.overrides)
    from lmtrain.run.compose.compose import Choices, for_each_config
    from lmtrain.run.gate import check

    codes: list[int] = []

    def task(composed: dict[str, Any], choices: Choices) -> None:
        config = check(composed, allowed=arguments.allowed_targets, typed=choices.overrides)
        sys.stderr.write("measuring this machine until two results agree ...\n")
        settled = measure_and_keep(config)
        findings = [*examine(config), settled.finding]
        if asked.calibrates:
            findings.append(calibrate(config, asked.overrides, num_steps=asked.calibration_steps))
        is_ready = all(finding.state != "bad" for finding in findings)
        _tell(findings, settled.device, as_json=asked.as_json, is_ready=is_ready)
        codes.append(EXIT_DONE if is_ready else EXIT_NO)

    for_each_config(task, arguments, config_name="train")
    return max(codes, default=EXIT_DONE)


def read_words(words: list[str]) -> DoctorArguments:
    """Take the doctor's own words out: `--json`, `--calibrate`, `calibrate=true` or a number of steps.

    Raises:
        ConfigurationError: `calibrate` is neither true, false nor a number of steps.
    """
    calibrates, steps = "--calibrate" in words, None
    overrides = [word for word in words if word not in FLAGS and not word.startswith("calibrate=")]
    for word in words:
        if not word.startswith("calibrate="):
            continue
        value = word.partition("=")[2]
        if value.isdigit() and int(value) >= FEWEST_STEPS:
            calibrates, steps = True, int(value)
        elif value in ("true", "false"):
            calibrates = value == "true"
        else:
            raise ConfigurationError(
                f"{word} is neither true, false nor at least {FEWEST_STEPS} steps; nearest valid: calibrate=true."
            )
    return DoctorArguments("--json" in words, calibrates=calibrates, calibration_steps=steps, overrides=overrides)


def measure_and_keep(config: RunConfig) -> Settled:
    """Measure the device of a run of the config until two results agree; keep it for plans and runs."""
    from lmtrain.doctor.devices import gpus  # torch: only where it measures
    from lmtrain.doctor.measure import measure_cpu, measure_gpu

    trainer, cache = config.trainer, Path(config.run.cache)
    uses_gpu = bool(gpus()) and trainer.accelerator != "cpu"
    on_cpu = partial(measure_cpu, threads=trainer.cpu_threads, num_ranks=trainer.devices)
    settled = measure_until_two_agree(measure_gpu if uses_gpu else on_cpu)
    write_measurements(cache, read_measurements(cache).with_device(settled.device))
    return settled


def examine(config: RunConfig) -> list[Finding]:
    """Make every check for a run of the config on this machine."""
    from lmtrain.doctor import devices  # torch

    trainer, root = config.trainer, Path(config.run.root)
    setting = planned_setting(config)
    found = devices.gpus()
    lacking = devices.lacking_formats(found)
    num_ranks, num_workers = trainer.devices, int(config.data.get("num_workers") or 0)
    checkpoint_bytes, kept_bytes = planned_bytes(config)
    return [
        python_version(),
        *package_versions(),
        devices.driver(found, devices.nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")),
        *devices.same_devices(found),
        flash_attention(has_gpu=bool(found)),
        devices.precision_support(lacking, wanted=setting.precision, fitting=fitting_precisions(lacking)),
        *devices.links(
            len(found),
            devices.nvidia_smi("topo", "-m"),
            num_nodes=trainer.num_nodes,
            whole_copies=one_of(words_of(ModelSpread, lambda each: each.replicates)),
        ),
        compiler(without=one_of(words_of(CompileFacts, lambda each: not each.compiles))),
        cores(num_ranks),
        shared_memory(num_processes=num_ranks * (1 + num_workers)),
        open_files(),
        room(root, needed_bytes=kept_bytes),
        disk_speed(root, checkpoint_bytes=checkpoint_bytes),
        *_store(config, root),
        scheduler(os.environ),
    ]


def fitting_precisions(lacking: frozenset[str]) -> str:
    """Name the precisions whose products the machine makes fast; one that chooses is asked for this machine."""
    words = words_of(PrecisionFacts, lambda each: each.bytes_of.matmul not in lacking, has_bf16="bf16" not in lacking)
    return one_of(words)


def planned_bytes(config: RunConfig) -> tuple[int, int]:
    """Return the bytes of a checkpoint of the config, and of all those on disk at once."""
    setting = planned_setting(config)
    planned = plan_on_paper(config, setting, model_facts(config, setting))
    assert planned.checkpoints is not None
    return planned.checkpoints.checkpoint_bytes, planned.checkpoints.kept_bytes


def _store(config: RunConfig, root: Path) -> list[Finding]:
    """Try the tracking store of a config, if it has one."""
    if "tracking_uri" not in config.logger:
        return []
    return [tracking_store(config.logger.get("tracking_uri") or default_uri(root))]


def _tell(findings: list[Finding], device: MeasuredDevice, *, as_json: bool, is_ready: bool) -> None:
    if as_json:
        measured = {"kind": device.kind, "name": device.name, "threads": device.threads}
        measured |= {"matmul_flops": dict(device.matmul_flops), "copy_bytes_per_second": device.copy_bytes_per_second}
        checks = [finding.to_json() for finding in findings]
        print(json.dumps({"ok": is_ready, "checks": checks, "measured": measured}))
        return
    from lmtrain.doctor.page import page
    from lmtrain.report.show import literal_console

    literal_console().print(page(findings, device))
