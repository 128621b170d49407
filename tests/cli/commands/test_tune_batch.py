import json

import pytest

from lmtrain.cli.commands import tune_batch as verb
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.execution.tried_run import TriedRun
from lmtrain.tracking.run_log import Point
from tests.configs import config_of
from tests.tiny import TINY

NO_MEMORY = TriedRun(exit_code=3, points=(), words="Out of memory at")


def asked(monkeypatch, most, *words, failure=NO_MEMORY):
    tried = []

    def try_run(typed, **settings):
        size = int(typed[-1].partition("=")[2])
        tried.append(size)
        point = Point(0.0, 3, 0, {"memory/peak_bytes": 1e9 + size, "speed/tokens_per_second": 100.0})
        return TriedRun(exit_code=0, points=(point,), words="") if size <= most else failure

    monkeypatch.setattr(verb, "try_run", try_run)
    return verb.tune_batch([*TINY, "batch.tokens_per_step=2048", *words], program="lmtrain tune"), tried


@pytest.mark.parametrize("most", [0, 1, 5, 32, 64])
def test_the_largest_that_fits_is_found_by_few_tries(monkeypatch, capsys, most):
    code, tried = asked(monkeypatch, most, "--json")
    found = json.loads(capsys.readouterr().out)
    largest = {0: None, 1: 1, 5: 4, 32: 32, 64: 64}[most]
    assert (found["largest"], code) == (largest, 0 if largest else 1)
    assert len(tried) == len(set(tried)) <= 4, "of seven sizes"
    assert all(one["planned_bytes"] > 0 for one in found["tried"])


def test_sizes_that_part_pairs_of_answers_are_not_tried(monkeypatch):
    monkeypatch.setattr(verb, "checked_config", lambda words: config_of(*words))  # without a run to start from
    code, tried = asked(monkeypatch, 5, "task=dpo", "batch.tokens_per_step=384")
    assert (code, tried) == (0, [12, 4, 6])


def test_a_killed_try_does_not_fit_and_any_other_failure_is_told(monkeypatch, capsys):
    assert asked(monkeypatch, 2, failure=TriedRun(exit_code=-9, points=(), words=""))[0] == 0
    assert "batch.micro_batch_sequences=2" in capsys.readouterr().out
    with pytest.raises(EnvironmentProblem, match="ended with exit code 4, not for memory: no data"):
        asked(monkeypatch, 2, failure=TriedRun(exit_code=4, points=(), words="no data"))
    with pytest.raises(
        EnvironmentProblem, match=r"0\.10 GB for each rank are less than Python and torch take, 0\.\d+ GB"
    ):
        asked(monkeypatch, 2, "cluster.memory_bytes=1e8")
    with pytest.raises(ConfigurationError, match="--steps=1"):
        asked(monkeypatch, 2, "--steps=1")
