"""`lmtrain simulate` as it is typed."""

import json
from pathlib import Path

import pytest

from lmtrain.cli.commands.simulate import simulate

WORDS = (
    "model=gpt2_124m",
    "model.num_layers=2",
    "strategy=fsdp",
    "cluster=h100_8x",
    "compile=none",
    "optimizer=adamw",
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_sweep_of_nodes_and_strategies_prints_a_fleet_each(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in WORDS if not word.startswith("strategy=")]
    assert simulate([*words, "-m", "strategy=fsdp,hsdp", "cluster.num_nodes=1,2048", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["strategy"], row["num_ranks"]) for row in rows] == [
        ("fsdp", 8), ("fsdp", 16384), ("hsdp", 8), ("hsdp", 16384),
    ]  # fmt: skip
    assert [row["tokens_per_step"] / row["num_ranks"] for row in rows] == [rows[0]["tokens_per_step"] / 8] * 4
    one_node, fsdp, _, hsdp = (row["tokens_per_second_per_device"] for row in rows)
    assert fsdp < hsdp < one_node, "weights cross the network under fsdp alone"
