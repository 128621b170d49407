"""The learning-speed benchmark: seconds become steps, one function scores every loop, the page says what was run."""

import itertools
import math

import pytest
import torch

from benchmarks.harness.learning_speed.evaluation import evaluate
from benchmarks.harness.learning_speed.task import LearningTask
from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.data.synthetic import synthetic
from lmtrain.evaluation import bits_per_byte
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.training_batches import RankRows, TrainingBatches

pytestmark = pytest.mark.benchmarks


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    root = tmp_path_factory.mktemp("learning")
    folder = synthetic(root=str(root / "data"), vocab_size=512)
    shape = {"num_layers": 1, "num_heads": 1, "vocab_size": 512, "context_tokens": 16, "num_sequences": 3}
    return LearningTask(
        **shape, device="cpu", precision="fp32", is_compiled=False, threads=1, warm_up_steps=1, turn_steps=1,
        max_steps=20, data_root=str(root / "data"), tokens_file="", peers="", scratch=str(root), folder=str(folder),
        seed=5,
    )  # fmt: skip


def test_equal_logits_cost_the_logarithm_of_the_vocabulary(task):
    batches = task.held_out()
    num_tokens = sum(int((targets >= 0).sum()) for _, targets in batches)
    assert num_tokens == task.dataset.split("validation").num_tokens - 1
    everything, part = evaluate(lambda inputs: torch.zeros(*inputs.shape, 512), batches, task.token_bytes, every=4)
    assert everything.bits_per_byte == pytest.approx(num_tokens * math.log2(512) / everything.num_bytes, rel=1e-6)
    assert 0 < part.num_bytes < everything.num_bytes


def test_loops_are_scored_as_our_own_evaluation_scores(task):
    class Bigrams(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(512, 512)

        def forward(self, tokens, targets=None, loss=None, documents=None):
            return self.table(tokens) if loss is None else loss(self.table(tokens), targets)

    def loss(logits, targets):
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return nats, nats, (targets >= 0).sum()

    model, batches = Bigrams(), task.held_out()
    ours = bits_per_byte.evaluate(model, batches, token_bytes=task.token_bytes, loss=loss)
    everything, _ = evaluate(model, batches, task.token_bytes)
    assert everything.bits_per_byte == pytest.approx(ours.bits_per_byte, rel=1e-6)
    assert everything.num_bytes == ours.num_bytes


def test_peers_read_the_rows_that_the_trainer_reads(task):
    batch = plan_batches(Batch(context_tokens=16, tokens_per_step=48))
    rows, order = TokenDataModule(folder=task.folder, batch=batch, seed=5).rows_in_order()
    trainer = TrainingBatches(rows, RankRows(order, batch=batch, rank=0, start_step=0))
    for mine, theirs in itertools.islice(zip(task.rows(), trainer, strict=False), 40):
        assert torch.equal(mine, theirs.long())
