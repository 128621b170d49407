"""Run a pipeline's stages one after the other, each in a process of its own; finished ones are skipped."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, Final, cast

from lmtrain.accounting.quantities import format_count
from lmtrain.composition.execution.pipeline_stages import (
    EVALUATE,
    EXPORT,
    PREFLIGHT,
    TRAIN,
    CommandPipeline,
    PipelineStage,
)
from lmtrain.errors import EXIT_DONE
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.tracking.settled_status import settled_status

STATE: Final = "pipeline.json"
BEGUN: Final = "begun"  # exports, by the names of their stages
LMTRAIN: Final = ("-c", "from lmtrain.cli import main; raise SystemExit(main())")
PASSED_ON: Final = (signal.SIGTERM, signal.SIGUSR1)


@dataclass(frozen=True, kw_only=True)
class EndedStage:
    """One stage's end: its key and its last attempt's seconds; `scores` are its run's, by name."""

    key: str
    seconds: float
    ended_at: float
    scores: dict[str, Any]


def done_stages(pipeline: CommandPipeline) -> dict[str, EndedStage]:
    """Return the finished stages by name, as far as their outputs are still there."""
    done = {name: EndedStage(**row) for name, row in _recorded(pipeline).items()}
    return {
        stage.name: done[stage.name]
        for stage in pipeline.stages
        if stage.name in done and done[stage.name].key == pipeline.key(stage) and _is_there(pipeline, stage)
    }


def run_stages(pipeline: CommandPipeline, *, tell: Callable[[str], None]) -> int:
    """Run the missing stages, and those after them; return the first exit code other than 0."""
    pipeline.folder.mkdir(parents=True, exist_ok=True)
    done, ran = done_stages(pipeline), set[str]()
    for number, stage in enumerate(pipeline.stages, start=1):
        title = f"[{number}/{len(pipeline.stages)}] {stage.name}"
        if stage.name in done and stage.of not in ran:
            tell(f"{title}: done in {done[stage.name].seconds:.0f} s, nothing has changed")
            continue
        tell(f"{title}: lmtrain {' '.join(pipeline.command(stage))}")
        _make_room(pipeline, stage)
        began = time.monotonic()
        code = _call(pipeline.command(stage))
        if code != EXIT_DONE:
            tell(f"{title} ended with exit code {code}; the same command goes on from here.")
            return code
        ran.add(stage.name)
        done[stage.name] = EndedStage(
            key=pipeline.key(stage),
            seconds=time.monotonic() - began,
            ended_at=time.time(),
            scores=_scores(pipeline, stage),
        )
        rows = _recorded(pipeline) | {name: asdict(one) for name, one in done.items()}
        kept = read_json(pipeline.folder / STATE)
        write_json(pipeline.folder / STATE, {**kept, "pipeline": pipeline.name, "stages": rows})
    return EXIT_DONE


def run_preflight(pipeline: CommandPipeline, *, tell: Callable[[str], None]) -> int:
    """Run all stages once, as short as they can be; return the first exit code other than 0.

    The files of a whole preflight are cleared away, and it is not run again until a stage changes.
    """
    short, kept = pipeline.preflight(), pipeline.folder / STATE
    if not pipeline.preflight_steps or read_json(kept).get(PREFLIGHT) == short.last_key:
        return EXIT_DONE
    tell(f"preflight: every stage once, trainings for {format_count(pipeline.preflight_steps, 'step')}")
    code = run_stages(short, tell=lambda line: tell(f"preflight {line}"))
    if code == EXIT_DONE:
        shutil.rmtree(short.folder, ignore_errors=True)
        write_json(kept, {**read_json(kept), PREFLIGHT: short.last_key})
    return code


def _call(words: list[str]) -> int:
    """Run one command; a stop is passed on, but for an interrupt: its terminal sends that one."""
    process = subprocess.Popen([sys.executable, *LMTRAIN, *words])

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN if sys.stdin.isatty() else pass_on)
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _is_there(pipeline: CommandPipeline, stage: PipelineStage) -> bool:
    """Tell whether the output of an ended stage still exists."""
    output = pipeline.output(stage)
    if stage.verb == TRAIN:
        status = settled_status(output)
        return status is not None and status.status == "FINISHED" and any((output / "checkpoints").glob("step_*"))
    return any((output / "evaluation").glob("*.json")) if stage.verb == EVALUATE else (output / "config.json").is_file()


def _make_room(pipeline: CommandPipeline, stage: PipelineStage) -> None:
    """Clear away an export of this pipeline's own, whole or begun before a kill, and note the one about to be made."""
    if stage.verb != EXPORT:
        return
    kept, output = read_json(pipeline.folder / STATE), pipeline.output(stage)
    begun = cast("list[str]", kept.get(BEGUN, []))
    if stage.name in (*_recorded(pipeline), *begun):
        shutil.rmtree(output, ignore_errors=True)
    if not output.exists():  # a stranger's folder is refused by the export
        write_json(pipeline.folder / STATE, {**kept, BEGUN: sorted({*begun, stage.name})})


def _scores(pipeline: CommandPipeline, stage: PipelineStage) -> dict[str, Any]:
    if stage.verb != EVALUATE:
        return {}
    files = sorted((pipeline.output(stage) / "evaluation").glob("*.json"))
    return read_json(files[-1]) if files else {}


def _recorded(pipeline: CommandPipeline) -> dict[str, dict[str, Any]]:
    return cast("dict[str, dict[str, Any]]", read_json(pipeline.folder / STATE).get("stages", {}))
