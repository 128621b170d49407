"""Searches over runs that are written instead of trained: the folders are real, the processes are not."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lmtrain.composition.execution.searching import search as search_module
from lmtrain.composition.execution.searching.allowance import Allowance
from lmtrain.composition.execution.searching.book import TrialBook
from lmtrain.composition.execution.searching.search import Search
from lmtrain.composition.execution.searching.sweep_folder import SweepFolder
from lmtrain.composition.execution.searching.trial_lines import TrialLines
from lmtrain.composition.stored_runs.job import Job
from lmtrain.errors import EXIT_NO, EXIT_TERMINATED, ConfigurationError
from lmtrain.search.halving import step_of_part
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import Interval, ListedValues, Space
from lmtrain.search.study import enqueue_grid, open_study
from lmtrain.tracking.stop_request import is_asked_to_stop
from lmtrain.tracking.sweep_file import SweepFile, read_sweep
from tests.configs import config_with

METRIC = "validation/bits_per_byte"
NUM_STEPS = 8
GRID = {"x": ListedValues(values=("1", "2", "3", "4"))}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "POLL_SECONDS", 0.0)


class Killed(BaseException):
    """The search's process is gone."""


@dataclass
class Written:
    """A run that writes one validation at each look, and stops where it is asked to."""

    folder: Path
    scores: list[float]
    code: int
    step: int
    end: int

    def exit_code(self) -> int | None:
        while self.step < self.end and not is_asked_to_stop(self.folder):
            self.step += 2
            line = {"time": 0, "step": self.step, "tokens": 0, "metrics": {METRIC: self.scores[self.step // 2 - 1]}}
            with (self.folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            return None
        if self.step < NUM_STEPS:
            return EXIT_TERMINATED
        return self.code

    def stop(self, number: int) -> None:
        raise AssertionError(f"signal {number}")


@dataclass
class WritingRunner:
    """Write runs: `score` gives a run's four validations by its words, or an exception of its process."""

    score: Callable[[dict[str, str]], list[float] | BaseException]
    started: list[tuple[str, int]] = field(default_factory=list)
    running: int = 0

    def start(self, job: Job, job_path: Path, *, slot: int) -> Written:
        assert json.loads(job_path.read_text())["overrides"] == job.overrides
        values = dict(word.split("=") for word in job.overrides)
        scores = self.score(values)
        self.started.append((job.name.rpartition("/")[2], slot))
        if isinstance(scores, Killed):
            raise scores
        attempt = job.folder / "attempts" / str(1 + len([*job.folder.glob("attempts/*")]))
        attempt.mkdir(parents=True)
        if isinstance(scores, BaseException):
            error = {"message": str(scores), "kind": type(scores).__name__}
            (attempt / "rank0.error.json").write_text(json.dumps(error))
            return Written(job.folder, [], 3, NUM_STEPS, NUM_STEPS)
        log = job.folder / "metrics.jsonl"
        step = json.loads(log.read_text().splitlines()[-1])["step"] if log.exists() else 0
        end = step_of_part(job.pause_after, num_steps=NUM_STEPS) or NUM_STEPS
        return Written(job.folder, scores, 0, step, end)


def flat(level: Callable[[dict[str, str]], float]) -> Callable[[dict[str, str]], list[float]]:
    return lambda values: [level(values)] * 4


def searching(
    root: Path, runner: Any, *, space: Space = GRID, rounds: Sequence[int] = (1,), num_trials: int = 4, **settings: Any
) -> Search:
    folder = SweepFolder(root / "s")
    folder.jobs.mkdir(parents=True, exist_ok=True)
    asked = SearchSettings(**{"sampler": "grid", **settings})
    new = SweepFile(name="s", kind="search", metric=METRIC, fingerprint="f", command="c")
    sweep, study = folder.begin(new), open_study(folder.path, asked)
    if asked.sampler == "grid":
        enqueue_grid(study, space)

    def make_job(words: Sequence[str]) -> Job:
        if "x=refused" in words:
            raise ConfigurationError("x=refused is no number.")
        config = config_with(values={})
        return replace(Job(config=config, overrides=[*words], name="", root=str(root)))

    progress = TrialLines("runs/s", "python train.py", [])
    return Search(
        settings=asked,
        num_trials=num_trials,
        folder=folder,
        book=TrialBook(
            sweep=sweep,
            study=study,
            space=space,
            seeds=range(asked.seeds),
            rounds=rounds,
            folder=folder.path,
            progress=progress,
        ),
        make_job=make_job,
        runner=runner,
        allowance=Allowance(settings=asked, planned_seconds=60.0, usd_per_hour=None),
        progress=progress,
    )


def recorded(root: Path) -> SweepFile:
    found = read_sweep(root / "s")
    assert found is not None
    return found


def test_bad_trials_are_recorded_and_the_best_of_the_others_is_found(tmp_path: Path) -> None:
    from lmtrain.errors import Diverged, OutOfMemory

    ends = {"1": Diverged("step 3 has loss nan"), "2": OutOfMemory("out of memory"), "3": RuntimeError("a bug")}
    space = {"x": ListedValues(values=("1", "2", "3", "refused", "5", "4"))}
    runner = WritingRunner(lambda values: ends.get(values["x"]) or [float(values["x"])] * 4)
    assert searching(tmp_path, runner, space=space, num_trials=6).run() == 0
    sweep = recorded(tmp_path)
    assert [trial.state for trial in sweep.trials] == [
        "diverged", "out_of_memory", "failed", "failed", "finished", "finished",
    ]  # fmt: skip
    assert (sweep.best, sweep.state) == (5, "FINISHED")
    assert sweep.trials[0].reason == "step 3 has loss nan"
    assert sweep.trials[3].reason == "x=refused is no number."
    told = [trial.state.name for trial in open_study(tmp_path / "s", SearchSettings()).trials]
    assert told == ["PRUNED", "PRUNED", "FAIL", "FAIL", "COMPLETE", "COMPLETE"]  # the first two: a bad place


def test_a_search_without_a_finished_trial_says_no(tmp_path: Path) -> None:
    runner = WritingRunner(lambda values: RuntimeError("a bug"))
    assert searching(tmp_path, runner, num_trials=2).run() == EXIT_NO


def test_the_mean_of_the_seeds_decides(tmp_path: Path) -> None:
    noise = {"0": -0.5, "1": 0.1, "2": 0.7}
    runner = WritingRunner(flat(lambda values: 1.0 if values["x"] == "2" else 0.95 + noise[values["seed"]]))
    searching(tmp_path, runner, seeds=3, num_trials=2).run()
    one, other = recorded(tmp_path).trials
    assert [run.score for run in one.runs] == pytest.approx([0.45, 1.05, 1.65])  # its first seed is the best run
    assert (one.score, one.deviation) == (pytest.approx(1.05), pytest.approx(0.6))
    assert (recorded(tmp_path).best, other.deviation) == (1, 0.0)


@pytest.mark.faults
def test_a_killed_search_goes_on_without_a_trial_run_twice(tmp_path: Path) -> None:
    killed = WritingRunner(lambda values: Killed() if values["x"] == "3" else [float(values["x"])] * 4)
    with pytest.raises(Killed):
        searching(tmp_path, killed).run()
    assert [name for name, _ in killed.started] == ["trial-0000", "trial-0001", "trial-0002"]
    resumed = WritingRunner(flat(lambda values: float(values["x"])))
    assert searching(tmp_path, resumed).run() == 0
    assert [name for name, _ in resumed.started] == ["trial-0002", "trial-0003"]
    assert [trial.values["x"] for trial in recorded(tmp_path).trials] == ["1", "2", "3", "4"]
    assert searching(tmp_path, resumed).run() == 0  # nothing is left to do
    assert len(resumed.started) == 2


def test_halving_goes_on_with_the_better_part_from_where_it_paused_also_after_a_kill(tmp_path: Path) -> None:
    def score(values: dict[str, str]) -> list[float] | BaseException:
        if killed and len(killed[0].started) == 4:
            return Killed()
        return [float(values["x"]) - step for step in range(4)]

    killed: list[WritingRunner] = []
    first = WritingRunner(score)
    killed.append(first)
    with pytest.raises(Killed):
        searching(tmp_path, first, rounds=(1, 2, 4), pruner="halving").run()
    killed.clear()
    second = WritingRunner(score)
    assert searching(tmp_path, second, rounds=(1, 2, 4), pruner="halving").run() == 0
    names = [name for name, _ in (*first.started[:4], *second.started)]
    assert names == [*(f"trial-000{n}" for n in range(4)), "trial-0000", "trial-0001", "trial-0000"]
    sweep = recorded(tmp_path)
    assert [trial.state for trial in sweep.trials] == ["finished", "pruned", "pruned", "pruned"]
    points = (tmp_path / "s" / "trial-0000" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in points] == [2, 4, 6, 8]  # none trained twice


def test_the_median_stops_a_run_at_one_of_its_validations(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: float(values["x"])))
    searching(tmp_path, runner, pruner="median", warmup_trials=1).run()
    trials = recorded(tmp_path).trials
    assert [trial.state for trial in trials] == ["finished", "pruned", "pruned", "pruned"]
    points = (tmp_path / "s" / "trial-0003" / "metrics.jsonl").read_text().splitlines()
    assert len(points) < 4


def test_runs_side_by_side_have_slots_of_their_own(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: float(values["x"])))
    searching(tmp_path, runner, parallel=2).run()
    assert {slot for _, slot in runner.started} == {0, 1}
    assert recorded(tmp_path).best == 0


def test_values_drawn_again_are_not_trained_again(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: float(values["x"])))
    searching(tmp_path, runner, sampler="random", num_trials=12).run()
    assert len(runner.started) == len({trial.values["x"] for trial in recorded(tmp_path).trials}) <= 4


def test_a_metric_of_no_run_ends_the_search_with_those_there_are(tmp_path: Path) -> None:
    search = searching(tmp_path, WritingRunner(flat(lambda values: 1.0)))
    search.book.sweep.metric = "validation/ema_loss"
    with pytest.raises(ConfigurationError, match=r"ema_loss is in no point of trial-0000; it has validation/bits_per"):
        search.run()


def test_hours_end_the_drawing(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: float(values["x"])))
    search = searching(tmp_path, runner, space={"x": Interval(low=0.0, high=1.0)}, sampler="random", num_trials=9)
    limited = replace(search.settings, max_hours=0.02)  # 72 s: room for one planned minute
    search.allowance = Allowance(settings=limited, planned_seconds=60.0, usd_per_hour=None)
    monkeypatched = {"seconds": 60.0}
    search.book.close_run = _with_seconds(search.book, monkeypatched["seconds"])
    search.run()
    assert len(runner.started) == 1


def _with_seconds(book: TrialBook, seconds: float) -> Any:
    close = book.close_run
    return lambda trial, run, outcome: close(trial, run, replace(outcome, seconds=seconds))
