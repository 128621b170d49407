import json

import pytest

from lmtrain.accounting.observed.parity_checks import RankDifference
from lmtrain.cli.commands.parity import parity
from lmtrain.errors import EXIT_DONE, EXIT_NO
from lmtrain.run.execution import parity_run
from lmtrain.run.stored_runs.job import Job
from tests import tiny

SAME = RankDifference(step=1, kind="loss", largest=0.0, scale=6.0)
WRONG = RankDifference(step=1, kind="gradient", name="head.weight", largest=1.0, scale=2.0, ranks=[0, 1])


def test_the_config_of_the_words_is_compared_on_ranks_and_a_difference_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    compared: list[tuple[Job, Job]] = []
    found = [SAME]

    def compare(pairs: list[tuple[Job, Job]], **_: object) -> list[tuple[RankDifference, ...]]:
        compared.extend(pairs)
        return [tuple(found) for _ in pairs]

    monkeypatch.setattr(parity_run, "compare", compare)
    words = [*tiny.TINY, "trainer.devices=8", "trainer.num_nodes=4", "strategy=tensor", "model.num_heads=2"]
    assert parity([*words, "precision=bf16_mixed", "--ranks=2", "--steps=1", "--json"]) == EXIT_DONE
    (alone, together), plain = compared[0], json.loads(capsys.readouterr().out)
    assert (alone.config.num_ranks, together.config.num_ranks) == (1, 2)
    assert together.config.strategy.get("tensor_size") == 2, "it follows the ranks"
    assert together.config.precision.word == "fp32"
    assert "precision=fp32" in plain["changed"]
    assert "compile=none" not in plain["changed"], "it was typed"
    found.append(WRONG)
    assert parity([*words, "--steps=1"]) == EXIT_NO
    assert "First difference: step 1, gradient of head.weight, by 1 (0.5 relative)" in capsys.readouterr().out
    assert parity([*tiny.TINY, "--steps=1", "--draws=1", "--json"]) == EXIT_NO
    drawn = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["is_equal"] for one in drawn] == [False]
    assert all(one["words"][0].startswith("strategy=") for one in drawn)
