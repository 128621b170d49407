"""Run a pipeline's stages one after the other, each in a process of its own; finished ones are skipped."""

import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

from lmtrain.accounting.quantities import format_count
from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DONE
from lmtrain.run.execution.start import set_aside
from lmtrain.run.pipelines.stages import (
    EVALUATE,
    EXPORT,
    PREFLIGHT,
    TRAIN,
    CommandPipeline,
    PipelineStage,
)
from lmtrain.run.stored_runs.own_folder import PIPELINE_FILE
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.scores import scores_since
from lmtrain.tracking.status import settled_status
from lmtrain.training.stopping import EXIT_CODES, SIGNALS

STATE: Final = PIPELINE_FILE
BEGUN: Final = "begun"  # the cause of each training and export, by the name of its stage
TRIED: Final = "tried"  # cause and seconds of the tries of each stage that has not ended, by its name
LMTRAIN: Final = ("-c", "from lmtrain.cli.main import main; raise SystemExit(main())")


@dataclass(frozen=True, kw_only=True)
class EndedStage:
    """One stage's end: its key and the seconds of all tries; `scores` are its run's, by name."""

    key: str
    seconds: float
    ended_at: float
    scores: dict[str, Any]


class Stops:
    """Signals to a pipeline: `number` of the newest, 0 without one; each is passed on to the command that runs."""

    def __init__(self) -> None:
        self.number = 0
        self.process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def heard(self) -> Generator[None]:
        """Hear them as long as this lasts."""
        before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.number = number
        is_sent = number == signal.SIGINT and sys.stdin.isatty()  # by the terminal, to every process
        if self.process is not None and not is_sent:
            self.process.send_signal(number)


def done_stages(pipeline: CommandPipeline) -> dict[str, EndedStage]:
    """Return the finished stages by name, as far as their outputs are still there, and newer than their base's."""
    recorded = {name: EndedStage(**row) for name, row in _recorded(pipeline).items()}
    done: dict[str, EndedStage] = {}
    for stage in pipeline.stages:
        found = recorded.get(stage.name)
        if found is None or found.key != pipeline.key(stage) or not _is_there(pipeline, stage):
            continue
        if _is_newer_than_base(stage, found, done):
            done[stage.name] = found
    return done


def run_stages(pipeline: CommandPipeline, *, tell: Callable[[str], None]) -> int:
    """Run the missing stages, and those after them; return the first exit code other than 0.

    A stop that comes too late for a stage, which is done, ends the pipeline before the next one.
    """
    stops = Stops()
    with stops.heard():
        return _run_stages(pipeline, stops, tell=tell)


def _run_stages(pipeline: CommandPipeline, stops: Stops, *, tell: Callable[[str], None]) -> int:
    pipeline.folder.mkdir(parents=True, exist_ok=True)
    done = done_stages(pipeline)
    for number, stage in enumerate(pipeline.stages, start=1):
        title = f"[{number}/{len(pipeline.stages)}] {stage.name}"
        if stage.name in done and _is_newer_than_base(stage, done[stage.name], done):
            same = "words and files" if stage.verb == EVALUATE else "words"
            tell(f"{title}: done; its {same} have not changed")
            continue
        if stops.number:
            tell(f"{title}: not begun, {signal.Signals(stops.number).name}; the same command goes on from here.")
            return EXIT_CODES[stops.number]
        tell(f"{title}: lmtrain {shlex.join(pipeline.command(stage))}")
        began, began_at = time.monotonic(), time.time()
        cause: list[str | float] = [pipeline.key(stage), done[stage.of].ended_at if stage.of else 0]
        code = _attempt(pipeline, stage, stops, cause=cause)
        seconds = _note_try(pipeline, stage, cause=cause, seconds=time.monotonic() - began)
        if code != EXIT_DONE:
            tell(f"{title} ended with exit code {code}; {_way_on(pipeline, stage, code)}")
            return code
        done[stage.name] = EndedStage(
            key=pipeline.key(stage),
            seconds=seconds,
            ended_at=time.time(),
            scores=scores_since(pipeline.output(stage), began_at) if stage.verb == EVALUATE else {},
        )
        rows = _recorded(pipeline) | {name: asdict(one) for name, one in done.items()}
        kept = read_json(pipeline.folder / STATE)
        tried = {name: each for name, each in _tried(kept).items() if name != stage.name}
        write_json(pipeline.folder / STATE, {**kept, "pipeline": pipeline.name, "stages": rows, TRIED: tried})
    return EXIT_DONE


def run_preflight(pipeline: CommandPipeline, *, tell: Callable[[str], None]) -> int:
    """Run all stages once, as short as they can be; return the first exit code other than 0.

    The files of a whole preflight are cleared away, and it is not run again until a stage changes.
    """
    if not has_preflight_ahead(pipeline):
        return EXIT_DONE
    short, kept = pipeline.preflight(), pipeline.folder / STATE
    tell(f"preflight: every stage once, trainings for {format_count(pipeline.preflight_steps, 'step')}")
    code = run_stages(short, tell=lambda line: tell(f"preflight {line}"))
    if code == EXIT_DONE:
        shutil.rmtree(short.folder, ignore_errors=True)
        write_json(kept, {**read_json(kept), PREFLIGHT: short.last_key})
    return code


def has_preflight_ahead(pipeline: CommandPipeline) -> bool:
    """Tell whether all stages are run in short first: it is asked for, and a stage has changed since the last time."""
    done = read_json(pipeline.folder / STATE).get(PREFLIGHT)
    return bool(pipeline.preflight_steps) and done != pipeline.preflight().last_key


def _attempt(pipeline: CommandPipeline, stage: PipelineStage, stops: Stops, *, cause: list[str | float]) -> int:
    """Run a stage; an older run of another cause stands aside for it, unless its command is refused."""
    older, output = _make_room(pipeline, stage, cause=cause), pipeline.output(stage)
    code = _call(pipeline.command(stage), stops)
    if older is not None and code == EXIT_CONFIGURATION and not output.exists():
        shutil.move(older, output)
        print(f"{output} is as it was.", file=sys.stderr)
    return code


def _note_try(pipeline: CommandPipeline, stage: PipelineStage, *, cause: list[str | float], seconds: float) -> float:
    """Note the seconds of a stage's try, and return those of all its tries of this cause."""
    kept = read_json(pipeline.folder / STATE)
    tried = _tried(kept)
    before = tried.get(stage.name, {})
    if before.get("cause") == cause:
        seconds += before["seconds"]
    tried[stage.name] = {"cause": cause, "seconds": seconds}
    write_json(pipeline.folder / STATE, {**kept, TRIED: tried})
    return seconds


def _tried(kept: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(kept.get(TRIED, {}))


def _call(words: list[str], stops: Stops) -> int:
    """Run one command; a stop is passed on."""
    stops.process = subprocess.Popen(python_command(*LMTRAIN, *words), env=python_environment())
    try:
        code = stops.process.wait()
    finally:
        stops.process = None
    return code if code >= 0 else 128 - code


def _is_there(pipeline: CommandPipeline, stage: PipelineStage) -> bool:
    """Tell whether the output of an ended stage still exists."""
    output = pipeline.output(stage)
    if stage.verb == TRAIN:
        status = settled_status(output)
        return status is not None and status.status == "FINISHED" and any((output / "checkpoints").glob("step_*"))
    return any((output / "evaluation").glob("*.json")) if stage.verb == EVALUATE else (output / "config.json").is_file()


def _is_newer_than_base(stage: PipelineStage, ended: EndedStage, done: Mapping[str, EndedStage]) -> bool:
    return stage.of is None or (stage.of in done and ended.ended_at >= done[stage.of].ended_at)


def _way_on(pipeline: CommandPipeline, stage: PipelineStage, code: int) -> str:
    """Return what to type after a stage's end: a refused command would be refused again."""
    if code != EXIT_CONFIGURATION:
        return "the same command goes on from here."
    anew = "" if stage.verb != TRAIN else f", or move {pipeline.output(stage)} away to begin it anew"
    return f"correct its words and go on from here{anew}."


def _make_room(pipeline: CommandPipeline, stage: PipelineStage, *, cause: list[str | float]) -> Path | None:
    """Clear away an export of this pipeline's own, set a training of another cause aside, and note the new one.

    An unfinished training goes on with changed words, as `lmtrain train` does, but not from another base.
    """
    older = None
    if stage.verb == EVALUATE:
        return older
    kept, output = read_json(pipeline.folder / STATE), pipeline.output(stage)
    begun = kept.get(BEGUN)
    causes = cast("dict[str, list[str | float]]", begun) if isinstance(begun, dict) else {}
    if stage.verb == EXPORT and stage.name in (*_recorded(pipeline), *causes):
        shutil.rmtree(output, ignore_errors=True)
    before = causes.get(stage.name)
    if stage.verb == TRAIN and before not in (None, cause):
        status = settled_status(output)
        if before[1:] != cause[1:] or (status is not None and status.status == "FINISHED"):
            older = set_aside(RunFolder(output, root=pipeline.root))
    if stage.verb == TRAIN or not output.exists():  # a stranger's folder is refused by the export
        write_json(pipeline.folder / STATE, {**kept, BEGUN: {**causes, stage.name: cause}})
    return older


def _recorded(pipeline: CommandPipeline) -> dict[str, dict[str, Any]]:
    return cast("dict[str, dict[str, Any]]", read_json(pipeline.folder / STATE).get("stages", {}))
