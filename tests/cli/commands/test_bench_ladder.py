import json
from itertools import pairwise

import pytest

from lmtrain.cli.commands import bench_ladder as verb
from lmtrain.errors import ConfigurationError
from lmtrain.run.execution.tried_run import TriedRun
from lmtrain.tracking.run_log import Point
from tests.tiny import TINY


def test_each_rung_has_the_words_before_it_and_the_last_one_the_ranks_typed():
    found = verb.rungs(["seed=2", "trainer.devices=8"])
    assert [rung.name for rung in found] == ["naive", "bf16", "fused attention", "batch", "compile", "ranks"]
    assert "precision=fp32" in found[0].words
    for earlier, later in pairwise(found):
        assert {word.partition("=")[0] for word in earlier.words} <= {word.partition("=")[0] for word in later.words}
    assert ["trainer.devices=1" in rung.words for rung in found] == [True] * 5 + [False]
    assert "trainer.devices=8" in found[-1].words
    assert "trainer.devices=2" in verb.rungs([])[-1].words


def test_a_failed_rung_is_told_and_the_others_are_climbed(monkeypatch, tmp_path, capsys):
    tried = []

    def try_run(words, **settings):
        tried.append(words)
        keys = [word.partition("=")[0] for word in words]
        assert keys.count("precision") == 1, "a rung's word takes the place of a typed one"
        if len(tried) == 2:
            return TriedRun(exit_code=2, points=(), words="lmtrain: no such format")
        speed = {"speed/tokens_per_second": 100.0 * len(tried), "speed/mfu_palm": 0.1}
        return TriedRun(exit_code=0, points=(Point(0.0, 3, 0, speed),), words="")

    monkeypatch.setattr(verb, "_climbed", lambda *args, **settings: CLIMB(*args, run=try_run, **settings))
    assert verb.bench_ladder([*TINY, f"run.root={tmp_path}", "--ladder", "--json"], program="lmtrain bench") == 0
    found = json.loads(capsys.readouterr().out)["rungs"]
    assert [one["tokens_per_second"] for one in found] == [100.0, None, 300.0, 400.0, 500.0, 600.0]
    assert found[1]["problem"] == "lmtrain: no such format"


def test_too_few_steps_are_refused():
    with pytest.raises(ConfigurationError, match="--steps=2"):
        verb.bench_ladder([*TINY, "--ladder", "--steps=2"], program="lmtrain bench")


CLIMB = verb._climbed
