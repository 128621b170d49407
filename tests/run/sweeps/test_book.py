from pathlib import Path

from lmtrain.run.sweeps.book import TrialBook
from lmtrain.run.sweeps.trial_lines import TrialLines
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import Interval
from lmtrain.search.study import draw, open_study
from lmtrain.tracking.sweep_file import SweepFile, read_sweep

SPACE = {"optimizer.lr": Interval(low=0.0, high=1.0)}


def book_of(folder: Path) -> TrialBook:
    sweep = read_sweep(folder) or SweepFile(name="s", kind="search", metric="m", fingerprint="f", command="c")
    return TrialBook(
        sweep=sweep,
        study=open_study(folder, SearchSettings(sampler="random")),
        space=SPACE,
        settings=SearchSettings(sampler="random"),
        seeds=[7],
        rounds=[1],
        folder=folder,
        progress=TrialLines("s", "train", []),
    )


def test_the_study_catches_up_with_a_file_written_before_a_kill(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    record = book.draw()
    record.state, record.score = "finished", 1.5
    book.save()  # killed here: the study was not told
    resumed = book_of(tmp_path)
    assert resumed.adopt() == []
    assert resumed.study.trials[0].value == 1.5


def test_a_trial_drawn_and_not_yet_written_is_taken_up_with_its_values(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    drawn = draw(book.study, SPACE, book.settings)  # killed here: the file does not have it
    (found,) = book_of(tmp_path).adopt()
    assert (found.number, found.state) == (0, "waiting")
    assert found.values == {"optimizer.lr": f"{drawn.params['optimizer.lr']:.6g}"}
    assert [(run.folder, run.seed) for run in found.runs] == [("trial-0000", 7)]
