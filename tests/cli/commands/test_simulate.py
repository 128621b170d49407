"""`lmtrain simulate` as it is typed."""

import json
from pathlib import Path

import pytest

from lmtrain.cli.commands import simulate as verb
from lmtrain.cli.commands.simulate import simulate
from lmtrain.errors import ConfigurationError, EnvironmentProblem

PAIRS = ("task=dpo", "init_from=x", "source.paths=[x]")
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


def test_a_page_has_memory_messages_and_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate([*WORDS, "cluster.num_nodes=2"]) == 0
    page = capsys.readouterr().out
    for words in ("fsdp on 16 ranks", "MFU", "of a device's speed on 8 ranks", "gathers", "16 ranks", "activations"):
        assert words in page


def test_ranks_and_strategies_make_a_table_and_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "--ranks", "8,16384", "--strategies=fsdp,hsdp"]
    assert simulate([*words, "--json", "--plot=fleets.svg"]) == 0
    assert "16,384" in Path("fleets.svg").read_text()
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
        (["--ranks"], "--ranks has no values; write --ranks 8,64,512"),
        (["--plot=nowhere/fleets.svg"], "there is no folder nowhere"),
        (["--plot=/tmp"], "--plot=/tmp is no SVG file; nearest valid: --plot=/tmp.svg"),
        (["--plot=fleets.png"], "nearest valid: --plot=fleets.svg"),
        (["-m", *WORDS, "strategy=fsdp,hsdp", "--plot=fleets.svg"], "draws the fleets of one config, and a sweep"),
        (["--ranks=8,x"], "--ranks=x is no number of ranks"),
        (["--ranks=12", *WORDS], "--ranks=12 is no whole number of nodes of 8 devices .* nearest valid: --ranks=16"),
        (["--strategies=fsdq", *WORDS], "--strategies=fsdq is none of .*fsdp"),
        (["model=llama_tiny", "strategy=fsdp"], "cluster=local names no device of the hardware table"),
        ([*WORDS[:1], "strategy=ddp", "cluster=h100_8x"], "strategy=ddp cannot be simulated on 8 ranks"),
        ([*WORDS, "task=grpo", "init_from=x"], "task=grpo writes with whole weights on each rank, and strategy=fsdp"),
        (
            [*WORDS[:2], "strategy=diloco", *WORDS[3:]],
            "strategy=diloco meets after .* of strategy=.*fsdp.*lmtrain plan",
        ),
        ([*WORDS, "weight_average=ema"], "weight_average keeps an average .*: weight_average=none, or `lmtrain plan`"),
        ([*WORDS, *PAIRS], "task=dpo has steps of its own, .* valid: task=pretrain, or `lmtrain plan` with the same"),
        ([*WORDS, "cluster.num_nodes=2", "cluster.network_bytes_per_second=null"], "has no value for 2 nodes"),
        ([*WORDS, "batch.micro_batch_sequences=auto"], "micro_batch_sequences=auto is found by memory"),
        ([*WORDS, "cluster.device=NVIDIA A100-SXM4-80GB", "precision=fp8"], "no peak of NVIDIA A100-SXM4-80GB for fp8"),
    ],
)
def test_bad_words_are_one_error_before_anything_starts(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        simulate(words)


def test_a_plot_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"--plot=.* cannot be written: Is a directory\.$"):
        verb._write(tmp_path, "<svg/>")
