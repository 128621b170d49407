"""What a step must not do, counted over two ranks: ask its device for a value, or reduce gradients more than once.

A strategy's ranks are started once and train every combination in turn; options are found in conf/.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forked, tiny
from tests.guarded_ranks import LOG_EVERY, NUM_RANKS, STEPS

PROJECT = Path(__file__).parents[1]
SCRIPT = Path(__file__).with_name("guarded_ranks.py")
# What a CPU has: tf32 and fp8 are refused there, and auto is one of the others.
PRECISIONS = [
    [f"precision={file.stem}"]
    for file in sorted((PROJECT / "conf" / "precision").glob("*.yaml"))
    if file.stem not in {"auto", "tf32", "fp8"}
]
# Beside one precision each: a logger's process and another's thread (there is no third way), and what judges gradients.
BESIDE = {
    "precision=fp32": ["logger=mlflow"],
    "precision=bf16_true": ["logger=tensorboard"],
    "precision=bf16_mixed": ["spikes=skip", "weight_average=ema", "gradient_clip_norm=1.0"],
}
COMBINATIONS = [
    *([word, *BESIDE.get(word, ())] for [word] in PRECISIONS),
    ["precision=fp16_mixed", "optimizer=adamw", "spikes=skip"],
]
# A logger reads the run's files beside the training: once is enough.
BY_STRATEGY = {
    "ddp": COMBINATIONS,
    "fsdp": [[word for word in words if not word.startswith("logger=")] for words in COMBINATIONS],
    # Reductions are another's matter here: between pairs for every product, or every so many steps.
    "tensor": [["precision=bf16_mixed", "model.num_heads=2", "gradient_clip_norm=1.0", "spikes=skip"]],
    "hsdp": [["precision=bf16_mixed", "strategy.shard_size=1", "gradient_clip_norm=1.0"]],
    "diloco": [["precision=fp32", "strategy.every_steps=2", "strategy.delta=int8"]],
}


@pytest.fixture(scope="module", params=BY_STRATEGY)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank counted in each combination."""
    folder = tmp_path_factory.mktemp(request.param)
    words = json.dumps(BY_STRATEGY[request.param])
    environment = tiny.environment()
    finished = forked.run(
        SCRIPT, [request.param, str(folder), words], folder=folder, environment=environment, num_ranks=NUM_RANKS
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(NUM_RANKS)]


@pytest.mark.distributed
def test_no_rank_asks_its_device_for_a_value_between_log_points(ranks):
    for rank, found in enumerate(ranks):
        for words, counted in found.items():
            between = {step: num for step, num in counted["reads"].items() if int(step) % LOG_EVERY}
            between.pop(str(STEPS), None)  # the run's end, which logs
            assert between
            assert not any(between.values()), f"rank {rank}, {words}: {between}"
            assert counted["reads"][str(STEPS)], "the counter sees the run's last log"


@pytest.mark.distributed
@pytest.mark.parametrize("ranks", ["ddp", "fsdp"], indirect=True)
def test_every_step_reduces_its_gradients_once_on_every_rank(ranks):
    """Two micro-steps a step; all steps but the first, after which DDP may part its buckets anew."""
    for found in ranks:
        for words, counted in found.items():
            nums = list(counted["reductions"].values())[1:]
            assert len(nums) == STEPS - 1
            assert len(set(nums)) == 1, f"{words}: {nums}"
            assert 1 <= nums[0] <= 3, f"{words}: more than one sum for each of two blocks and the rest: {nums}"
