"""`lmtrain bench OVERRIDES`: how fast a training config runs here, by part, and what would make it faster.

It trains for some seconds in a folder that is deleted, with the config's own data, model, callbacks and Trainer.
"""

import contextlib
import io
import json
import resource
import tempfile
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.step_parts import Bench
from lmtrain.composition.arguments import parse_arguments
from lmtrain.composition.job import Job
from lmtrain.errors import EXIT_DONE, ConfigurationError

SECONDS: Final = 8.0
IDLE: Final = tuple(f"callbacks.{name}" for name in ("validation", "text_samples", "checkpoint", "progress"))
REPLACED: Final = ("budget", "run.root", "run.name", "resume", "logger", *IDLE)
WORDS: Final = (
    "budget=steps",
    "budget.steps=1000000",
    "run.name=bench",
    "resume=never",
    "logger=none",
    *(f"{key}=null" for key in IDLE),
)


def bench(words: list[str], *, program: str = "lmtrain bench") -> int:
    """Measure the step of a config, or of each of a sweep, and print it.

    Raises:
        ConfigurationError: The command line is wrong.
    """
    as_json, seconds, overrides = read_words(words)
    kept = [word for word in overrides if not _is_replaced(word.lstrip("+~").partition("=")[0])]
    arguments = parse_arguments([*kept, *WORDS])
    from lmtrain.composition.compose import Choices, for_each_config

    def task(config: dict[str, Any], choices: Choices) -> None:
        require_one_process(config)
        with tempfile.TemporaryDirectory(prefix="lmtrain-bench-") as folder:
            job = make_job(config, choices.overrides, root=Path(folder), allowed=arguments.allowed_targets)
            with contextlib.redirect_stdout(io.StringIO()):
                found = measure(job, seconds=seconds)
        if as_json:
            print(json.dumps(found.to_json()))
            return
        from lmtrain.report.bench_page import print_bench

        print_bench(found, title=choices.options["model"])

    for_each_config(task, arguments, config_name="train", program=program)
    return EXIT_DONE


def read_words(words: list[str]) -> tuple[bool, float, list[str]]:
    """Take the verb's own words out: `--json` and `--seconds=8`; the rest are overrides of a run.

    Raises:
        ConfigurationError: The seconds are no number above 0.
    """
    seconds, rest = SECONDS, [word for word in words if word != "--json"]
    for word in [word for word in rest if word.partition("=")[0] == "--seconds"]:
        rest.remove(word)
        value = word.partition("=")[2]
        if not value.replace(".", "", 1).isdigit() or not float(value) > 0:
            raise ConfigurationError(f"{word} is no number of seconds above 0; nearest valid: --seconds={SECONDS:g}.")
        seconds = float(value)
    return "--json" in words, seconds, rest


def require_one_process(config: dict[str, Any]) -> None:
    """Refuse a run of several processes, whose parts wait for one another.

    Raises:
        ConfigurationError: More than one device or node.
    """
    for key in ("devices", "num_nodes"):
        if int(config["trainer"][key]) > 1:
            raise ConfigurationError(
                f"trainer.{key}={config['trainer'][key]}: lmtrain bench times one process; use trainer.{key}=1 with "
                "batch.tokens_per_step divided by it, and lmtrain plan for what the links add."
            )


def make_job(config: dict[str, Any], overrides: list[str], *, root: Path, allowed: list[str]) -> Job:
    """Check a composed config, and give it a run folder below `root`."""
    from lmtrain.composition.start import check_config
    from lmtrain.tracking.run_folder import RunFolder

    job = Job(
        config=check_config(config, allowed=allowed),
        overrides=overrides,
        name="bench",
        root=str(root),
        allowed_targets=allowed,
    )
    RunFolder(job.folder, root=root).create()
    return job


def measure(job: Job, *, seconds: float) -> Bench:
    """Train until the step and its parts are known."""
    import torch

    from lmtrain.composition.build import build_run
    from lmtrain.composition.caches import keep_caches_in
    from lmtrain.composition.run import fit, quiet_libraries
    from lmtrain.tracking.run_log import RunLog
    from lmtrain.training.step_parts import StepTimer

    quiet_libraries()
    keep_caches_in(Path(job.config["run"]["cache"]))
    log = RunLog(job.folder)
    run = build_run(job, rank=0, log=log)
    compiles = str(job.config["compile"]["_target_"]).rpartition(".")[2] != "none"
    timer = StepTimer(seconds=seconds, is_compiled=compiles)
    run.trainer.callbacks.append(timer)  # pyright: ignore[reportAttributeAccessIssue]  # a list, always
    try:
        fit(run, None)
    finally:
        log.close()
    assert timer.parts is not None
    plan = run.context.plan
    uses_gpu = run.module.device.type == "cuda"
    return Bench(
        parts=timer.parts,
        batch=plan.batch,
        flops_per_token=plan.flops_per_token,
        peak_flops=plan.peak_flops,
        peak_source=plan.peak_source,
        peak_bytes=torch.cuda.max_memory_allocated() if uses_gpu else _peak_of_process(),
        first_step_seconds=timer.first_step_seconds,
        num_steps=timer.num_steps,
        is_compiled=compiles,
        num_workers=int(job.config["data"].get("num_workers") or 0),
        wider_seconds_per_token=timer.wider_seconds_per_token,
    )


def _peak_of_process() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _is_replaced(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in REPLACED)
