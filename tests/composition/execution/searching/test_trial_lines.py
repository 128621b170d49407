import pytest

from lmtrain.composition.execution.searching.trial_lines import TrialLines, noise_words, score_words
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial


def trial(number: int, *scores: float) -> SweepTrial:
    runs = [SweepRun(folder="", seed=seed, score=score) for seed, score in enumerate(scores)]
    mean = sum(scores) / len(scores)
    deviation = 0.1 if len(scores) > 1 else None
    values = {"optimizer.lr": f"0.{number}"}
    return SweepTrial(number=number, values=values, state="finished", score=mean, deviation=deviation, runs=runs)


def test_a_lead_is_told_with_its_noise() -> None:
    clear = noise_words([trial(1, 1.0, 1.1, 1.2), trial(2, 2.0, 2.11, 2.19)])
    assert clear is not None
    assert clear.startswith("trial 1 is 1.0000 ±")
    assert clear.endswith("better than trial 2: more than noise")
    vague = noise_words([trial(1, 1.0, 1.3, 1.2), trial(2, 1.2, 1.1, 1.4)])
    assert vague is not None
    assert vague.endswith("within noise")
    assert noise_words([trial(1, 1.0), trial(2, 2.0)]) is None


def test_the_last_lines_name_the_best_and_the_command_to_train_it(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = SweepFile(name="s", kind="search", metric="validation/loss", fingerprint="f", command="c")
    sweep.trials = [trial(3, 2.0), trial(4, 1.0, 1.1), SweepTrial(number=5, values={}, state="out_of_memory")]
    TrialLines("runs/s", "python train.py", ["model=llama_micro"]).last_lines(sweep)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 trials: 2 finished, 1 out of memory; validation/loss, lower is better"
    assert lines[1].split() == ["trial", "4", "1.0500", "±", "0.1000,", "2", "seeds", "optimizer.lr=0.4"]
    assert lines[-2] == "train the best: python train.py model=llama_micro optimizer.lr=0.4"
    assert score_words(SweepTrial(number=0, values={})) == "-"
