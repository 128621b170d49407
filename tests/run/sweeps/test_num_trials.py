from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.sweeps import prepared_search
from lmtrain.run.sweeps.num_trials import num_trials
from lmtrain.run.sweeps.sweep_folder import new_sweep
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial, TrialState
from tests.run.sweeps.test_prepared_search import prepared

OPEN: Sequence[tuple[TrialState, int]] = [("paused", 1), ("waiting", 0), ("diverged", 0)]
OVER: Sequence[tuple[TrialState, int]] = [("waiting", 1), ("pruned", 1)]


def halving(root: Path, trials: int, *words: str) -> Any:
    asked = [f"sweep.trials={trials}", "sweep.sampler=random", "sweep.pruner=halving", "run.name=race"]
    return prepared(root, *asked, *words)


def begun(root: Path, states: Sequence[tuple[TrialState, int]], *, trials: int) -> SweepFile:
    search = halving(root, trials)
    sweep = new_sweep(search.words, search.base.config, name="race", command="c")
    sweep.trials = [
        SweepTrial(number=number, values={}, state=state, rounds=rounds)
        for number, (state, rounds) in enumerate(states)
    ]
    sweep.save(root / "race")
    return sweep


class Begun(Exception):
    """The search goes on."""


@pytest.fixture(autouse=True)
def _no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object) -> None:
        raise Begun

    monkeypatch.setattr(prepared_search, "open_study", begin)


def test_halving_has_no_more_trials_once_its_first_round_is_over(tmp_path: Path) -> None:
    (tmp_path / "race").mkdir()
    begun(tmp_path, OVER, trials=2)
    before = (tmp_path / "race/sweep.json").read_bytes()
    refusal = (
        r"^sweep\.trials=6 adds trials to sweep\.pruner=halving after its first round, which had 2; nearest valid: "
        r"sweep\.trials=2 goes on, and another run\.name searches anew\.$"
    )
    with pytest.raises(ConfigurationError, match=refusal):
        halving(tmp_path, 6).run()
    assert (tmp_path / "race/sweep.json").read_bytes() == before
    for trials in (1, 2):
        with pytest.raises(Begun):
            halving(tmp_path, trials, "sweep.parallel=2").run()


def test_the_first_round_takes_more_trials(tmp_path: Path) -> None:
    (tmp_path / "race").mkdir()
    sweep = begun(tmp_path, OPEN, trials=3)
    search = halving(tmp_path, 6)
    with pytest.raises(Begun):
        search.run()
    assert num_trials(search.words, sweep) == 6


def test_a_first_round_that_ended_without_room_for_all_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "race").mkdir()
    sweep = begun(tmp_path, OVER, trials=6)
    assert num_trials(halving(tmp_path, 6).words, sweep) == 2
    assert capsys.readouterr().out == "halving's first round is over: it had 2 of 6 trials, and no more are drawn\n"
    assert num_trials(halving(tmp_path, 2).words, sweep) == 2
    assert capsys.readouterr().out == ""
