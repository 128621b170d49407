import json
import re
from pathlib import Path

import pytest

from lmtrain.cli.commands.plan import plan
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import read_config
from lmtrain.run.scaling import scaled, scaling_of
from lmtrain.run.schema.node import node_at

CACHE = Path(__file__).parents[2] / ".cache" / "tests"
WIDE = ["scaling=width_transfer", "scaling.base_width=64"]


def test_without_scaling_a_config_is_as_it_was_written() -> None:
    config = compose_config([])
    assert scaled(config, []) is config
    assert scaling_of(config) is None


def test_a_config_holds_what_was_derived_and_the_record_of_it() -> None:
    config = read_config(compose_config(WIDE)).checked()
    assert config.optimizer.get("head_lr") == 0.005
    found = config.scaling
    assert found is not None
    assert (found.rule, found.options) == ("width_transfer", {"base_width": 64, "base_head_width": None})
    assert (found.base["optimizer.head_lr"], found.derived["optimizer.head_lr"]) == (0.01, 0.005)
    assert found.base["model.init_std"] == 0.02, "the constructor's default"
    assert all(node_at({**config.values}, key) == value for key, value in found.derived.items())


def test_a_scaled_config_is_not_scaled_again() -> None:
    config = compose_config(WIDE)
    assert scaled(config, WIDE) is config


def test_a_plan_shows_what_was_derived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["scaling=width_transfer", "scaling.base_width=32", f"run.cache={CACHE}"]
    assert plan(words) == 0
    page = capsys.readouterr().out
    assert "Scaled by scaling=width_transfer" in page
    assert re.search(r"model\.init_std +0\.01 \(base 0\.02\)", page)
    assert plan([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scaling"]["derived"]["model.init_std"] == 0.01


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scaling=width"], r"scaling=width: unknown option\. Did you mean 'scaling=width_transfer'\?"),
        (["scaling.base_width=64"], r"scaling\.base_width=64: unknown key"),
        ([*WIDE, "scaling.base_width=wide"], r"scaling\.base_width=wide is not a number"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [])
    with pytest.raises(ConfigurationError, match=message):
        plan(words)
