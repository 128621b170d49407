"""Run a pipeline's stages one after the other, each in its own process; finished ones are skipped."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from lmtrain.accounting.quantities import format_count
from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DONE
from lmtrain.run.execution.start import set_aside
from lmtrain.run.pipelines.stages import EVALUATE, EXPORT, PREFLIGHT, TRAIN, CommandPipeline, PipelineStage
from lmtrain.run.stored_runs.find_run import PIPELINE_FILE
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.scores import scores_since
from lmtrain.tracking.status import settled_status
from lmtrain.training.stopping import EXIT_CODES, handling

BEGUN: Final = "begun"  # in the state: the cause of each training and export, by the name of its stage
CHILD: Final = (  # one lmtrain command, which a killed pipeline takes along
    "from lmtrain.training.lifetime import die_with_parent; die_with_parent({parent}); "
    "from lmtrain.cli.main import main; raise SystemExit(main())"
)
CONTINUES: Final = "the same command continues here."
Cause = list[str | float]


@dataclass(frozen=True, kw_only=True)
class EndedStage:
    """One stage's end: its key and the seconds of its last try; `scores` are its run's, by name."""

    key: str
    seconds: float
    ended_at: float
    scores: dict[str, Any]


class Stops:
    """Signals to a pipeline: `number` of the newest, 0 without one; each is passed on to the running command."""

    def __init__(self) -> None:
        self.number = 0
        self.process: subprocess.Popen[bytes] | None = None

    def hear(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        self.number = number
        is_sent = number == signal.SIGINT and sys.stdin.isatty()  # by the terminal, to every process
        if self.process is not None and not is_sent:
            self.process.send_signal(number)

    def call(self, words: list[str]) -> int:
        """Run one command and return its exit code; signals are passed on to it."""
        command = python_command("-c", CHILD.format(parent=os.getpid()), *words)
        self.process = subprocess.Popen(command, env=python_environment())
        try:
            code = self.process.wait()
        finally:
            self.process = None
        return code if code >= 0 else 128 - code


def done_stages(pipeline: CommandPipeline) -> dict[str, EndedStage]:
    """Return the finished stages by name, if their outputs still exist and are newer than their base's."""
    recorded = {name: EndedStage(**row) for name, row in _state(pipeline).get("stages", {}).items()}
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
    with handling(stops.hear):
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
            tell(f"{title}: not begun, {signal.Signals(stops.number).name}; {CONTINUES}")
            return EXIT_CODES[stops.number]
        tell(f"{title}: lmtrain {shlex.join(pipeline.command(stage))}")
        began, began_at = time.monotonic(), time.time()
        cause: Cause = [pipeline.key(stage), done[stage.of].ended_at if stage.of else 0]
        code = _attempt(pipeline, stage, stops, cause=cause)
        seconds = time.monotonic() - began
        if code != EXIT_DONE:
            tell(f"{title} ended with exit code {code}; {_next_step(pipeline, stage, code)}")
            return code
        scores = scores_since(pipeline.output(stage), began_at) if stage.verb == EVALUATE else {}
        done[stage.name] = EndedStage(key=pipeline.key(stage), seconds=seconds, ended_at=time.time(), scores=scores)
        state = _state(pipeline)
        rows = state.get("stages", {}) | {name: asdict(one) for name, one in done.items()}
        _write_state(pipeline, {**state, "pipeline": pipeline.name, "stages": rows})
    return EXIT_DONE


def run_preflight(pipeline: CommandPipeline, *, tell: Callable[[str], None]) -> int:
    """Run all stages once, as short as possible; return the first exit code other than 0.

    The files of a whole preflight are deleted, and it is not run again until a stage changes; with no steps, never.
    """
    short = pipeline.preflight()
    if not pipeline.preflight_steps or _state(pipeline).get(PREFLIGHT) == short.last_key:
        return EXIT_DONE
    tell(f"preflight: every stage once, trainings for {format_count(pipeline.preflight_steps, 'step')}")
    code = run_stages(short, tell=lambda line: tell(f"preflight {line}"))
    if code == EXIT_DONE:
        shutil.rmtree(short.folder, ignore_errors=True)
        _write_state(pipeline, {**_state(pipeline), PREFLIGHT: short.last_key})
    return code


def _attempt(pipeline: CommandPipeline, stage: PipelineStage, stops: Stops, *, cause: Cause) -> int:
    """Run a stage; an older run of another cause is set aside for it, unless its command is refused."""
    older, output = _make_room(pipeline, stage, cause=cause), pipeline.output(stage)
    code = stops.call(pipeline.command(stage))
    if older is not None and code == EXIT_CONFIGURATION and not output.exists():
        shutil.move(older, output)
        print(f"{output} is as it was.", file=sys.stderr)
    return code


def _is_there(pipeline: CommandPipeline, stage: PipelineStage) -> bool:
    """Return whether the output of an ended stage still exists."""
    output = pipeline.output(stage)
    if stage.verb == TRAIN:
        status = settled_status(output)
        return status is not None and status.status == "FINISHED" and any((output / "checkpoints").glob("step_*"))
    return any((output / "evaluation").glob("*.json")) if stage.verb == EVALUATE else (output / "config.json").is_file()


def _is_newer_than_base(stage: PipelineStage, ended: EndedStage, done: Mapping[str, EndedStage]) -> bool:
    return stage.of is None or (stage.of in done and ended.ended_at >= done[stage.of].ended_at)


def _next_step(pipeline: CommandPipeline, stage: PipelineStage, code: int) -> str:
    """Return what to do after a stage's end: a refused command would be refused again."""
    if code != EXIT_CONFIGURATION:
        return CONTINUES
    again = "" if stage.verb != TRAIN else f", or move {pipeline.output(stage)} away to begin it again"
    return f"correct its words and continue{again}."


def _make_room(pipeline: CommandPipeline, stage: PipelineStage, *, cause: Cause) -> Path | None:
    """Delete an export of this pipeline, set a training of another cause aside, and note the new one.

    An unfinished training continues with changed words, as `lmtrain train` does, but not from another base.
    """
    older = None
    if stage.verb == EVALUATE:
        return older
    state, output = _state(pipeline), pipeline.output(stage)
    begun = state.get(BEGUN)
    causes: dict[str, Cause] = begun if isinstance(begun, dict) else {}
    if stage.verb == EXPORT and stage.name in (*state.get("stages", {}), *causes):
        shutil.rmtree(output, ignore_errors=True)
    before = causes.get(stage.name)
    if stage.verb == TRAIN and before is not None and before != cause:
        status = settled_status(output)
        if before[1:] != cause[1:] or (status is not None and status.status == "FINISHED"):
            older = set_aside(RunFolder(output, root=pipeline.root))
    if stage.verb == TRAIN or not output.exists():  # the export refuses a stranger's folder
        _write_state(pipeline, {**state, BEGUN: {**causes, stage.name: cause}})
    return older


def _state(pipeline: CommandPipeline) -> dict[str, Any]:
    return {**read_json(pipeline.folder / PIPELINE_FILE)}


def _write_state(pipeline: CommandPipeline, state: Mapping[str, Any]) -> None:
    write_json(pipeline.folder / PIPELINE_FILE, {**state})
