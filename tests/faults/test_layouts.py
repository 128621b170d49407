"""One run that changes its strategy and number of ranks at each step: every layout of a checkpoint into every other."""

import json
from itertools import pairwise, permutations
from pathlib import Path

import pytest

from tests import tiny

STRATEGIES = {
    "single": ("single", 1),
    "ddp2": ("ddp", 2),
    "fsdp2": ("fsdp", 2),
    "fsdp4": ("fsdp", 4),
}
# Each change once, from the checkpoint of the one before, but between single and ddp2, whose file is the same:
# test_resume.py goes on from one rank with two, and back.
TRAIL = ["single", "fsdp2", "fsdp4", "single", "fsdp4", "ddp2", "fsdp4", "fsdp2", "ddp2", "fsdp2", "single"]
SAME_FILE = {("single", "ddp2"), ("ddp2", "single")}
WORDS = [
    "trainer.accelerator=cpu",
    "optimizer.iteration_dtype=fp32",  # bf16 products amplify the roundings of sums in another order
    "optimizer.row_beta=0.9",
    "schedule=constant",
    "momentum_schedule=none",
    "weight_average=ema",
    "spikes=skip",
    "spikes.window_steps=4",
    "spikes.num_sigmas=2",
    "batch.micro_batch_sequences=2",
    "callbacks.validation.num_passes=null",
    "callbacks.validation.every_steps=1",
    "callbacks.validation.max_tokens=256",
]
RELATIVE = 1e-6  # losses are within 3e-8
OF_NORM = 1e-5  # where gradients nearly cancel, their norm shows the roundings of sums in another order: 4e-6 was seen


def metrics(run: Path) -> dict[int, dict[str, float]]:
    """Return all that was measured of each step, but for speed and cost."""
    found: dict[int, dict[str, float]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        point = json.loads(line)
        kept = {name: value for name, value in point["metrics"].items() if name.startswith(("train/", "validation/"))}
        found.setdefault(point["step"], {}).update(kept)
    return found


def test_the_trail_has_every_change_once() -> None:
    changes = [*pairwise(TRAIL)]
    assert len(changes) == len(set(changes))
    assert {*changes} == {*permutations(STRATEGIES, 2)} - SAME_FILE


@pytest.mark.long
@pytest.mark.timeout(900)  # 12 runs one after another
def test_a_checkpoint_of_any_strategy_goes_on_with_any_other(tmp_path: Path) -> None:
    untouched = tiny.train(tmp_path, *WORDS, f"budget.steps={len(TRAIL)}", "run.name=untouched")
    assert untouched.returncode == 0, untouched.stderr
    for number, strategy in enumerate(TRAIL, start=1):
        option, num_ranks = STRATEGIES[strategy]
        words = [*WORDS, f"strategy={option}", f"trainer.devices={num_ranks}", f"budget.steps={number}", "run.name=a"]
        leg = tiny.train(tmp_path, *words, num_ranks=num_ranks)
        assert leg.returncode == 0, (number, strategy, leg.stderr)
    expected, found = metrics(tmp_path / "runs/untouched"), metrics(tmp_path / "runs/a")
    assert found.keys() == expected.keys()
    for step, values in expected.items():
        norms = [of.pop("train/gradient_norm", 0.0) for of in (found[step], values)]
        assert found[step] == pytest.approx(values, rel=RELATIVE), step
        assert norms[0] == pytest.approx(norms[1], rel=OF_NORM), step
