"""The same losses from a plain torch loop, Lightning on one rank, DDP on two and FSDP2 on two.

fp32 sums are taken in another order when a batch is split, so equality is to 2e-6 relative (a few units in the last
place of fp32, 1.2e-7 each, grown over four clipped steps).
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lmtrain.data.order import WindowOrder
from lmtrain.data.shards import open_dataset
from lmtrain.data.synthetic import synthetic
from lmtrain.data.windows import num_training_windows
from tests import forked, tiny
from tests.parity.plain_python import CLIP, CONTEXT_TOKENS, TOKENS_PER_STEP, build_model

SCRIPT = Path(__file__).with_name("plain_python.py")
STEPS = 4
RELATIVE_FP32 = 2e-6


def run_script(strategy: str, micro_batch_sequences: int, num_ranks: int = 1) -> list[float]:
    """Run the plain-Python script on some ranks and return its losses."""
    words = [strategy, str(micro_batch_sequences), str(STEPS), "fp32"]
    finished = forked.run(SCRIPT, words, folder=Path.cwd(), environment=tiny.environment(), num_ranks=num_ranks)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a torch loop that a newcomer could write."""
    split_folder = synthetic(root=str(tmp_path_factory.mktemp("data")), vocab_size=512, num_tokens=20_000)
    dataset = open_dataset(split_folder)
    split = dataset.split("train")
    num_windows = num_training_windows(split.num_tokens, CONTEXT_TOKENS)
    order = WindowOrder(num_windows=num_windows, seed=7, fingerprint=dataset.manifest.fingerprint)
    model = build_model()
    model.initialize_weights(torch.Generator().manual_seed(7))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    num_sequences = TOKENS_PER_STEP // CONTEXT_TOKENS
    losses: list[float] = []
    for step in range(STEPS):
        windows = order(np.arange(step * num_sequences, (step + 1) * num_sequences))
        batch = torch.from_numpy(split.windows(windows * CONTEXT_TOKENS, CONTEXT_TOKENS + 1)).long()
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_lightning_on_one_rank_equals_a_plain_torch_loop(reference: list[float]) -> None:
    assert run_script("single", 8) == pytest.approx(reference, rel=RELATIVE_FP32)


@pytest.mark.slow
def test_accumulation_equals_a_plain_torch_loop(reference: list[float]) -> None:
    assert run_script("single", 2) == pytest.approx(reference, rel=RELATIVE_FP32)


@pytest.mark.distributed
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_with_accumulation_equal_a_plain_torch_loop(strategy: str, reference: list[float]) -> None:
    assert run_script(strategy, 2, num_ranks=2) == pytest.approx(reference, rel=RELATIVE_FP32)


@pytest.mark.slow
def test_the_reference_learns_so_that_equality_means_something(reference: list[float]) -> None:
    assert reference[0] == pytest.approx(math.log(512), rel=0.05)
    assert reference[-1] < reference[0] - 0.05
