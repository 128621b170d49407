"""`lmtrain audit` of a command: the plan's figure, and a speed that cannot be."""

import json
from typing import Any

import pytest

from lmtrain.cli.commands.audit import audit
from lmtrain.cli.commands.plan import plan_json
from lmtrain.errors import ConfigurationError
from tests.tiny import DATA

WORDS = [*DATA, "budget.steps=2", "precision=fp32", "compile=none"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def shown(capsys, *words: str, code: int = 0) -> dict[str, Any]:
    assert audit([*WORDS, *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_formula_is_the_plans_and_a_speed_above_the_peak_is_named(capsys) -> None:
    found = shown(capsys)
    (plan,) = plan_json(WORDS)
    formula = sum(counts["formula"] for counts in found["flops"].values())
    assert formula == pytest.approx(plan["flops_per_token"]["palm"] * plan["batch"]["tokens_per_step"])
    assert (found["mfu"], found["ok"], found["batch"]["is_real"]) == ({}, True, False)
    speed = 1.21 * 30.3e12 / plan["flops_per_token"]["palm"]  # of the L4's peak in fp32
    wrong = shown(capsys, "--tokens-per-second", f"{speed:.6e}", "--device", "NVIDIA L4", code=1)
    assert wrong["mfu"]["palm"] == pytest.approx(1.21, rel=1e-4)
    assert wrong["findings"][0].startswith("this batch: an MFU of 1")
    assert audit([*WORDS, "--tokens-per-second", "41K", "--device", "NVIDIA L4"]) == 0
    assert "attention scores" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tokens-per-second", "0"], "--tokens-per-second: must be above 0"),
        (["--tokens-per-second", "1K", "--device", "h100"], "device: must name one device .* NVIDIA H100 PCIe"),
        (["--tokens-per-second", "1K", "--device", "H999"], "device=H999 is not in the hardware table"),
        (["--tokens-per-second", "1K", "cluster.device=null"], "needs a known peak; add --device NAME"),
        (["--step", "3"], "--step and --data are of a run"),
    ],
)
def test_wrong_words_are_refused(words, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        audit([*WORDS, *words])
