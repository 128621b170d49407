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
from lmtrain.models.base import LanguageModel
from lmtrain.models.nano import nano
from lmtrain.optim.adamw import adamw
from lmtrain.optim.muon import muon
from lmtrain.run.planning.parity_configs import STEADY_EPS
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


def weights_after(gradients: list[list[torch.Tensor]], *, eps: float, optimizer: str) -> list[torch.Tensor]:
    """Return nano's weights after steps along given gradients."""
    model = small_nano()
    rates = dict.fromkeys(("embedding_lr", "head_lr", "vector_lr"), RATE)
    made = (
        adamw(model, lr=RATE, weight_decay=0.0, eps=eps)
        if optimizer == "adamw"
        else muon(model, lr=RATE, **rates, eps=eps, iteration_dtype="fp32")
    )
    for step in gradients:
        for parameter, gradient in zip(model.parameters(), step, strict=True):
            parameter.grad = gradient.clone()
        made.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def small_nano() -> LanguageModel:
    model = nano(depth=2, vocab_size=64, max_context_tokens=32)
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


def gradients_of(num_ranks: int) -> list[torch.Tensor]:
    """Return the mean of the gradients that ranks have of their shares of one batch."""
    model, batch = small_nano(), torch.randint(64, (8, 33), generator=torch.Generator().manual_seed(1))
    shares: list[list[torch.Tensor]] = []
    for rows in batch.chunk(num_ranks):
        model.zero_grad()
        F.cross_entropy(model(rows[:, :-1]).flatten(0, 1).float(), rows[:, 1:].flatten()).backward()
        shares.append(
            [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in model.parameters()]
        )
    return [torch.stack(each).mean(0) for each in zip(*shares, strict=True)]


RATE = 0.01


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_ranks_weights_are_one_s_to_rounding_with_the_epsilon_that_the_guide_names(optimizer: str) -> None:
    """Below it a gradient of rounding alone moves a weight by a share of the rate: docs/guides/parallel.md."""
    alone, apart = gradients_of(1), gradients_of(2)
    for one, two in zip(alone, apart, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6 * max(float(one.abs().max()), 1e-3))

    def distance(eps: float) -> float:
        pairs = zip(*(weights_after([g], eps=eps, optimizer=optimizer) for g in (alone, apart)), strict=True)
        return max(float((one - two).abs().max()) for one, two in pairs) / RATE

    assert distance(STEADY_EPS) < 2e-4  # 7e-7 to 3e-5 here, as matrix products round by their memory's alignment
    assert distance(1e-8 if optimizer == "adamw" else 1e-10) > 1e-3  # the defaults: 0.006 and 0.1
