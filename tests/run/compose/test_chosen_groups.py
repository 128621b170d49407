from pathlib import Path

import pytest

from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.chosen_groups import chosen_groups


def test_an_option_chooses_for_others_by_its_list_and_by_those_that_it_extends(tmp_path: Path) -> None:
    assert chosen_groups({"adapter": "lora", "debug": "[anomaly]", "seed": "3"}) == {
        "optimizer",
        "compile",
        "precision",
    }
    for name, extended in (("small", "lora"), ("one", "other"), ("other", "one")):
        (tmp_path / "adapter").mkdir(exist_ok=True)
        (tmp_path / "adapter" / f"{name}.yaml").write_text(f"defaults:\n- {extended}\n# - override /model: none\n")
    assert chosen_groups({"adapter": "small"}, own=str(tmp_path)) == {"optimizer"}
    assert chosen_groups({"adapter": "one"}, own=str(tmp_path)) == chosen_groups({"adapter": "../x"}) == set()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("optimizer=schedule_free task=sft", ["schedule=constant"]),
        ("experiment=gpt2_124m_adamw optimizer=schedule_free", ["schedule=constant"]),
        ("optimizer=schedule_free task=sft schedule=linear", []),
        ("optimizer=schedule_free", []),
        ("optimizer=muon task=sft", []),
    ],
)
def test_a_typed_optimizer_s_own_schedule_comes_before_a_task_s(line: str, words: list[str]) -> None:
    assert parse_arguments(line.split()).imported == words
