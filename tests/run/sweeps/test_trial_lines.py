from pathlib import Path

import pytest

from lmtrain.run.sweeps.trial_lines import TrialLines
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial
from tests.trials import trial


def test_the_last_lines_name_the_best_and_the_command_to_train_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sweep = SweepFile(name="s", kind="search", metric="validation/loss", fingerprint="f", command="c")
    sweep.trials = [trial(3, 2.0), trial(4, 1.0, 1.1), SweepTrial(number=5, values={}, state="out_of_memory")]
    TrialLines("my runs/s", "python train.py", ["model=llama_micro"]).last_lines(sweep)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 trials: 2 finished, 1 out of memory; validation/loss, lower is better"
    assert lines[1].split() == ["trial", "4", "1.0500,", "deviation", "0.1000", "of", "2", "seeds", "optimizer.lr=0.4"]
    sweep.trials = [trial(3, 2.00001), trial(4, 2.00003)]
    sweep.save(tmp_path)
    lines_of = TrialLines("s", "python train.py", [])
    lines_of.last_lines(sweep)
    lines_of.ended(sweep.trials[1], sweep)
    told = capsys.readouterr().out
    assert "trial 3    2.00001 " in told
    assert "trial 4: 2.00003, 0s | best 2.00001 of trial 3" in told
    assert lines[-1] == "as a page, with each key's importance: lmtrain report 'my runs/s'"
    assert lines[-3] == "train the best: python train.py model=llama_micro optimizer.lr=0.4"
