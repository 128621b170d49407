"""`lmtrain simulate` as it is typed."""

import json
from pathlib import Path

import pytest

from lmtrain.cli.commands.simulate import simulate
from lmtrain.errors import ConfigurationError

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


def test_ranks_and_strategies_make_a_table_and_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "--ranks", "8,16384", "--strategies=fsdp,hsdp"]
    assert simulate([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["fleets"]
    assert [(row["strategy"], row["num_ranks"]) for row in rows] == [
        ("fsdp", 8), ("fsdp", 16384), ("hsdp", 8), ("hsdp", 16384),
    ]  # fmt: skip
    assert [row["tokens_per_step"] / row["num_ranks"] for row in rows] == [rows[0]["tokens_per_step"] / 8] * 4
    assert rows[0]["scaling"] == pytest.approx(1)
    assert rows[1]["scaling"] < rows[3]["scaling"] < 1, "weights cross the network under fsdp alone"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks"], "--ranks: expected one argument"),
        (["--ranks=8,x"], "--ranks must be whole numbers"),
        (["--ranks=12", *WORDS], "--ranks must be whole nodes of 8 devices, got 12. Did you mean 16"),
        (["--strategies=fsdq", *WORDS], "--strategies must be of .*fsdp"),
        (["model=llama_tiny", "strategy=fsdp"], "cluster.device must be in the hardware table"),
        (
            [*WORDS, "cluster.num_nodes=2", "cluster.device_network_bytes_per_second=null"],
            "cluster.network_bytes_per_second",
        ),
        ([*WORDS, "batch.micro_batch_sequences=auto"], "micro_batch_sequences must be a number"),
        (
            [*WORDS, "cluster.device=NVIDIA A100-SXM4-80GB", "precision=fp8"],
            "no peak of NVIDIA A100-SXM4-80GB for precision=fp8",
        ),
    ],
)
def test_bad_words_are_one_error_before_anything_starts(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        simulate(words)
