import copy
from pathlib import Path
from typing import Any

import pytest

from lmtrain.cli.main import serve
from lmtrain.errors import EXIT_CONFIGURATION, ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.check_config import check_config
from lmtrain.run.schema.check import refuse_foreign
from tests.tiny import TINY

FOREIGN = {"_target_": "os.system"}
# By key, the places of a foreign target: groups, a member of one, below a setting, in a list, within data.
PLACES = (
    "optimizer",
    "trainer",
    "callbacks.own",
    "model.attention",
    "model.value_embedding_layers",
    "data.folder",
    "source",
)


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return compose_config(TINY)


def with_foreign(composed: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the config with a foreign target at a place."""
    changed = copy.deepcopy(composed)
    *path, last = place.split(".")
    node: Any = changed
    for name in path:
        node = node[name]
    is_group = isinstance(node.get(last), dict)
    node[last] = {**node[last], **FOREIGN} if is_group else [FOREIGN] if isinstance(node.get(last), list) else FOREIGN
    return changed


def refusal(check: Any, values: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        check(values, allowed=())
    return str(refused.value)


@pytest.mark.parametrize("place", PLACES)
def test_a_foreign_target_is_refused_unseen_with_the_words_of_the_whole_check(
    place: str, composed: dict[str, Any]
) -> None:
    values = with_foreign(composed, place)
    told = refusal(refuse_foreign, values)
    assert f"{place}" in told
    assert "._target_=os.system is not allowed" in told
    assert refusal(check_config, values) == told


def test_our_own_config_and_an_allowed_package_pass(composed: dict[str, Any]) -> None:
    refuse_foreign(composed, allowed=())
    refuse_foreign(with_foreign(composed, "optimizer"), allowed=["os."])


@pytest.mark.parametrize(
    ("node", "part"),
    [
        ("optimizer: {_target_: mine.Optimizer}", "optimizer._target_=mine.Optimizer is not allowed"),
        ("trainer: {_target_: os.system}", "trainer._target_=os.system is not allowed"),
        ("optimizer: {_args_: [{_target_: os.system}]}", "optimizer._args_=[{'_target_': 'os.system'}] is not a set"),
        ("callbacks: {checkpoint: {_recursive_: false}}", "callbacks.checkpoint._recursive_=False is not a setting"),
    ],
)  # fmt: skip
def test_every_command_refuses_the_option_of_a_stranger_with_the_same_words(
    node: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "theirs.yaml").write_text(f"# @package _global_\n{node}\n")
    words = ["--config-dir", str(tmp_path), "experiment=theirs", *TINY]
    told: dict[str, str] = {}
    for verb in ("train", "plan", "doctor", "parity", "simulate", "bench", "tune batch", "launch slurm"):
        name, *more = verb.split()
        assert serve(name, [*more, *words], program="lmtrain") == EXIT_CONFIGURATION
        told[verb] = capsys.readouterr().err
    assert set(told.values()) == {told["train"]}, told
    assert part in told["train"]
    assert told["train"].count("\n") == 1
