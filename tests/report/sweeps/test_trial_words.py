from lmtrain.report.sweeps.trial_words import noise_words, score_words
from lmtrain.tracking.sweep_file import SweepTrial
from tests.trials import trial


def test_a_lead_is_told_with_its_noise() -> None:
    clear = noise_words([trial(1, 1.0, 1.1, 1.2), trial(2, 2.0, 2.11, 2.19)])
    assert clear is not None
    assert clear.startswith("trial 1 is 1.0000 ±")
    assert clear.endswith("better than trial 2: more than noise")
    vague = noise_words([trial(1, 1.0, 1.3, 1.2), trial(2, 1.2, 1.1, 1.4)])
    assert vague is not None
    assert vague.endswith("within noise")
    assert noise_words([trial(1, 1.0), trial(2, 2.0)]) is None


def test_a_score_is_told_with_its_spread_where_there_is_one() -> None:
    assert score_words(SweepTrial(number=0, values={}), decimals=4) == "-"
    assert score_words(trial(1, 1.0), decimals=4) == "1.0000"
    assert score_words(trial(1, 1.0, 1.1), decimals=4) == "1.0500, deviation 0.1000 of 2 seeds"
