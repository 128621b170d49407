"""Recorded micro-steps through a real Trainer, with a recorder that does on a CPU what a CUDA graph does."""

from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from torch.nn import functional as F

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.head import LossTotal
from lmtrain.models.nano import nano
from lmtrain.optim.adamw import adamw
from lmtrain.optim.muon import muon
from lmtrain.precision.policy import bf16_mixed, fp32
from lmtrain.training.micro_step_graph import WARM_UP_MICRO_STEPS, RecordedMicroStep
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.trainer import make_trainer
from lmtrain.training.transforms import ModelTransforms
from lmtrain.training.weight_average import WeightAverage
from tests.training import short_run
from tests.training.recorded_on_cpu import GraphOnCpu
from tests.training.short_run import train, weights

STEPS = 10


def uneven(project, hidden, targets):
    """Score some targets, so that micro-batches have different numbers of them."""
    return CrossEntropy()(project, hidden, targets.masked_fill(targets < 100, -100))


def with_dropout(project, hidden, targets):
    """Score hidden states of which a fifth are dropped, other ones in every micro-batch."""
    return CrossEntropy()(project, F.dropout(hidden, 0.2), targets)


class Evaluates(pl.Callback):
    """Runs the model between steps, on a batch of another shape, without gradients."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        with torch.no_grad(), trainer.precision_plugin.forward_context():
            pl_module.language_model.eval()
            pl_module.language_model.forward(torch.zeros(1, 8, dtype=torch.int64))
            pl_module.language_model.train()


def with_precision(plugin, **settings):
    """Make the Trainer of a short run with a precision of ours."""
    return make_trainer(**settings | {"precision": plugin})


@pytest.fixture
def fit(data_folder, tmp_path, monkeypatch):
    """Train ten steps of two micro-batches; with graphs where a list is given for them."""

    def run(*, graphs=None, precision=None, model=None, **settings):
        if precision is not None:
            plugin = PrecisionPlugin(precision, device_type="cpu")
            build = partial(with_precision, plugin)
            monkeypatch.setattr(short_run, "make_trainer", build)
            prepare = partial(precision.prepare, strategy_casts=False)
            settings["transforms"] = ModelTransforms(precision=prepare)
        if model is not None:

            def on_meta():
                with torch.device("meta"):
                    return model()

            monkeypatch.setattr(short_run, "meta_model", on_meta)

        def make_graph(device):
            graph = GraphOnCpu(device)
            if graphs is not None:
                graphs.append(graph)
            return graph

        settings = {"steps": STEPS, "micro_batch_sequences": 2, "optimizer": partial(adamw, lr=1e-2)} | settings
        return train(data_folder, tmp_path, **settings, make_graph=None if graphs is None else make_graph)[0]

    return run


CASES = {
    "plain": {},
    "one micro-batch a step": {"micro_batch_sequences": 4},
    "clipped, uneven, averaged": {
        "gradient_clip_norm": 0.1, "loss": uneven, "weight_average": WeightAverage, "spikes": SpikeFilter,
    },
    "dropout": {"loss": with_dropout},
    "tied head": {"model": lambda: GPT2(width=16, num_layers=2, num_heads=2, vocab_size=257, max_context_tokens=16)},
    "bf16 copies, evaluated": {"precision": bf16_mixed(), "loss": ChunkedCrossEntropy(), "extra": Evaluates()},
    "fp32 by its plugin": {"precision": fp32()},
    "muon and value embeddings": {
        "model": lambda: nano(depth=2, vocab_size=257, max_context_tokens=16),
        "optimizer": partial(muon, lr=1e-2, embedding_lr=1e-2, head_lr=1e-2, vector_lr=1e-2),
    },
}  # fmt: skip
MADE_ANEW = {
    "weight_average": lambda: WeightAverage(decay=0.9),
    "spikes": lambda: SpikeFilter(num_sigmas=1.0, window_steps=4),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_recorded_steps_are_the_plain_ones_to_the_last_bit(fit, case):
    def anew():
        return {name: MADE_ANEW[name]() if name in MADE_ANEW else value for name, value in case.items()}

    graphs = []
    plain, recorded = fit(**anew()), fit(graphs=graphs, **anew())
    micro_steps = STEPS * (1 if "micro_batch_sequences" in case else 2)
    assert [graph.num_replays for graph in graphs] == [micro_steps - WARM_UP_MICRO_STEPS]
    assert recorded.step_metrics.drain() == plain.step_metrics.drain()
    assert torch.equal(weights(recorded), weights(plain))


def test_a_resumed_run_records_anew_and_goes_on_to_the_last_bit(fit, tmp_path):
    whole = fit(graphs=[], steps=STEPS)
    fit(graphs=[], steps=4, save_to=tmp_path / "saved.ckpt")
    resumed = fit(graphs=[], steps=STEPS, checkpoint=tmp_path / "saved.ckpt")
    assert torch.equal(weights(resumed), weights(whole))


class Replaces(pl.Callback):
    """Does something to the module after the fourth step."""

    def __init__(self, replace):
        self.replace = replace

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 4:
            self.replace(pl_module)


def move_weights(module):
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()


@pytest.mark.parametrize("replace", [lambda module: module.zero_grad(), move_weights], ids=["gradients", "weights"])
def test_memory_that_was_replaced_is_refused_and_not_lost(fit, replace):
    with pytest.raises(RuntimeError, match=r"a weight or its gradient was replaced.*compile\.cuda_graphs=false"):
        fit(graphs=[], extra=Replaces(replace))


def recorded_square(graph):
    """Return a weight and a micro-step that adds the gradient of its square times the ids' sum."""
    weight = torch.nn.Parameter(torch.ones(()))

    def micro_step(batch):
        loss = weight.square() * batch.ids.sum()
        loss.backward()
        return LossTotal(loss.detach(), loss.detach(), batch.ids.sum()), loss.detach()

    return weight, RecordedMicroStep(micro_step, [weight], graph=graph)


def test_a_batch_of_another_shape_runs_as_it_is():
    graph = GraphOnCpu(torch.device("cpu"))
    weight, micro_step = recorded_square(graph)
    for number in range(8):
        ids = torch.full((2, 3) if number % 2 else (1, 3), number)
        _, loss = micro_step(ids)
        assert loss == ids.sum()
    assert graph.num_replays == 3, "of the five after the warm-up, those of the first one's shape"
    assert weight.grad is not None
    assert weight.grad == 2 * sum(number * (6 if number % 2 else 3) for number in range(8))
    micro_step.zero_gradients()
    assert weight.grad == 0
