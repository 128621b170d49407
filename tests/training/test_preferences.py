"""DPO and its reference."""

from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from lmtrain.data.rows import RowBatch
from lmtrain.errors import DataError
from lmtrain.models.head import LossTotal
from lmtrain.training.objectives.dpo import LOSSES, DirectPreference
from lmtrain.training.objectives.objective import ObjectiveSums
from lmtrain.training.objectives.reference import LOG_PROBS, ReferenceScores, ScoringRank
from lmtrain.training.step_metrics import StepMetrics
from lmtrain.training.token_batch import TokenBatch, to_batch, training_tokens
from tests.adapters.test_low_rank import small

PROMPT = 4  # tokens of each of the pair's sequences


def batch(num_pairs: int = 3, num_tokens: int = 12) -> TokenBatch:
    """Return sequences of which both of a pair begin alike, and end at different places."""
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(250, (2 * num_pairs, num_tokens + 1), generator=drawn)
    ids[1::2, :PROMPT] = ids[::2, :PROMPT]
    ends = torch.randint(PROMPT + 1, num_tokens, (2 * num_pairs, 1), generator=drawn)
    place = torch.arange(1, num_tokens + 1)
    mask = (place >= PROMPT) & (place < ends)
    return TokenBatch(ids, None, mask, torch.randn(2 * num_pairs, generator=drawn) * 3 - 30)


class TheirModel(torch.nn.Module):
    """Answers as TRL's patched models do: log-probabilities of the labels."""

    def __init__(self, ours: torch.nn.Module) -> None:
        super().__init__()
        self.ours = ours
        self.config = SimpleNamespace()

    def forward(self, input_ids, attention_mask, labels, **_):
        logits = self.ours(input_ids[:, :-1])
        targets = labels[:, 1:]
        chosen = logits.log_softmax(-1).gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        log_probs = chosen.masked_fill(targets == -100, 0.0)
        zeros = torch.zeros_like(log_probs)  # for metrics that are not compared
        return SimpleNamespace(log_probs=log_probs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())


def of_trl(model, data, *, loss_type: str, label_smoothing: float):
    """Return the loss and the metrics of TRL's trainer on the same batch."""
    trainer_module = pytest.importorskip("trl.trainer.dpo_trainer")
    order = [0, 2, 4, 1, 3, 5]  # theirs has the preferred answers first
    mask = torch.cat([torch.zeros(6, 1, dtype=torch.bool), data.loss_mask], dim=1)[order]
    inputs = {
        "input_ids": data.ids[order],
        "attention_mask": torch.ones_like(data.ids),
        "completion_mask": mask.long(),
        "ref_chosen_logps": data.reference[::2],
        "ref_rejected_logps": data.reference[1::2],
    }
    metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    theirs = SimpleNamespace(
        model=TheirModel(model),
        beta=0.3,
        label_smoothing=label_smoothing,
        loss_types=[loss_type],
        loss_weights=[1.0],
        ld_alpha=None,
        f_divergence_type="reverse_kl",
        use_weighting=False,
        precompute_ref_logps=True,
        aux_loss_enabled=False,
        args=SimpleNamespace(discopop_tau=0.05),
        accelerator=SimpleNamespace(
            device=torch.device("cpu"), gather_for_metrics=lambda one: one, gather=lambda one: one
        ),
        _metrics=metrics,
        _total_train_tokens=0,
        _tp_size=1,
    )
    loss = trainer_module.DPOTrainer._compute_loss(theirs, theirs.model, inputs, return_outputs=False)
    return loss, {name: value[0] for name, value in metrics["train"].items()}


def without_reference(model, data, *, loss_type: str, label_smoothing: float):
    """Return the loss of TRL's experimental trainers, from mean log-probabilities; ORPO's likelihood is of answers."""
    log_probs = model(data.ids[:, :-1]).log_softmax(-1)
    answers = log_probs.gather(-1, data.ids[:, 1:].unsqueeze(-1)).squeeze(-1).mul(data.loss_mask).sum(-1)
    means = answers / data.loss_mask.sum(-1)
    held = SimpleNamespace(
        beta=0.3,
        label_smoothing=label_smoothing,
        loss_type=loss_type,
        simpo_gamma=0.4,
        alpha=0.0,
        accelerator=SimpleNamespace(device="cpu"),
    )
    if loss_type == "orpo":
        trainer = pytest.importorskip("trl.experimental.orpo.orpo_trainer").ORPOTrainer
        return -means[::2].mean() - trainer.odds_ratio_loss(held, means[::2], means[1::2])[0].mean()
    trainer = pytest.importorskip("trl.experimental.cpo.cpo_trainer").CPOTrainer
    return trainer.cpo_loss(held, means[::2], means[1::2])[0].mean()


MEANS = {"chosen_reward": "chosen", "rejected_reward": "rejected", "accuracy": "accuracies", "margin": "margins"}


@pytest.mark.parametrize("loss_type", LOSSES)
def test_loss_and_gradients_are_those_of_trl_on_the_same_batch(loss_type: str) -> None:
    data, model = batch(), small()
    smoothing = 0.1 if loss_type in ("exo_pair", "robust", "simpo") else 0.0
    gamma = 0.4 if loss_type == "simpo" else 0.0
    objective = DirectPreference(beta=0.3, label_smoothing=smoothing, loss_type=cast("Any", loss_type), gamma=gamma)
    sums = objective(model, data)
    ours = sums.objective / sums.further[0]
    if loss_type in ("simpo", "orpo"):
        expected = without_reference(model, data, loss_type=loss_type, label_smoothing=smoothing)
    else:
        expected, found = of_trl(model, data, loss_type=loss_type, label_smoothing=smoothing)
        means = dict(zip(objective.measures, (sums.further[2:] / 3).tolist(), strict=True))
        for name, their_name in MEANS.items() if loss_type != "sft" else ():  # which has no reference here
            assert means[f"preference/{name}"] == pytest.approx(found[f"rewards/{their_name}"], rel=1e-5, abs=1e-5)
    torch.testing.assert_close(ours.float(), expected, rtol=1e-5, atol=1e-5)
    weights = list(model.parameters())
    mine, their = (torch.autograd.grad(one, weights, retain_graph=True, allow_unused=True) for one in (ours, expected))
    scale = max(float(one.abs().max()) for one in their if one is not None)
    for one, other in zip(mine, their, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * scale)  # fp32, other orders of sums


def test_smoothing_is_that_of_the_published_formula() -> None:
    data = batch()
    assert data.reference is not None
    total = LossTotal(data.reference + 2 * torch.arange(6), torch.tensor(0.0), torch.tensor(1))
    sums = DirectPreference(beta=0.3, label_smoothing=0.1)._of_pairs(
        total, total.objective - data.reference, torch.ones(6)
    )
    margin = torch.full((3,), -0.6)
    expected = (0.9 * torch.log1p(torch.exp(-margin)) + 0.1 * torch.log1p(torch.exp(margin))).sum()
    torch.testing.assert_close(sums.objective, expected)


PLACE = ScoringRank(rank=0, num_ranks=1, device=torch.device("cpu"), forward_context=nullcontext())


class PairRows:
    """Rows in memory: both of a pair begin with its number, and their loss is on the last two of six targets."""

    fingerprint = "rows"

    def __init__(self, num_rows: int = 8, *, prompts_differ: bool = False) -> None:
        self.num_rows = num_rows
        self.ids = np.random.default_rng(0).integers(0, 250, (num_rows, 7)).astype(np.uint16)
        if not prompts_differ:
            self.ids[:, :5] = np.arange(num_rows)[:, None] // 2

    def read(self, rows):
        return RowBatch(self.ids[rows], None, np.broadcast_to(np.arange(6) >= 4, (len(rows), 6)).copy())


def scores_of(rows, needed, folder) -> ReferenceScores:
    return ReferenceScores(rows, np.array(needed), folder=folder, key="base", rows_together=2, batch_rows=4)


def test_needed_pairs_are_scored_once_and_more_of_them_later(tmp_path) -> None:
    rows, model = PairRows(), small()
    first = scores_of(rows, [0, 5], tmp_path)
    assert first.complete(model, PLACE) == 4
    assert np.isfinite(first.values).tolist() == [True, True, False, False, True, True, False, False]
    batch = to_batch(rows.read(np.array([4, 5])))
    inputs, targets, documents = training_tokens(batch)
    expected = model(inputs, targets, LOG_PROBS, documents).objective.detach().numpy()
    np.testing.assert_allclose(first.values[4:6], expected, rtol=1e-6)
    read = first.beside(rows).read(np.array([5, 4]))
    np.testing.assert_array_equal(read.reference, first.values[[5, 4]])
    again = scores_of(rows, range(8), tmp_path)
    assert again.complete(small(), PLACE) == 4
    assert scores_of(rows, range(8), tmp_path).complete(small(), PLACE) == 0
    np.testing.assert_array_equal(again.values[:2], first.values[:2])


def test_rows_with_different_prompts_are_no_pair(tmp_path) -> None:
    with pytest.raises(DataError, match=r"rows 0 and 1 are not a pair"):
        scores_of(PairRows(prompts_differ=True), range(8), tmp_path).complete(small(), PLACE)


def sums(objective: float, *further: float) -> ObjectiveSums:
    value = torch.tensor(objective, dtype=torch.float64)
    return ObjectiveSums(value, value, torch.tensor(100), torch.tensor(further, dtype=torch.float64))


def test_a_step_divides_an_objective_and_its_measures_by_its_own_count() -> None:
    metrics = StepMetrics()
    for one in (sums(3.0, 2, 1, 1.0), sums(5.0, 6, 3, 7.0)):  # loss, count, examples, a measure
        metrics.add_micro_step(one)
    step = metrics.reduce_micro_steps()
    assert float(step.divisor) == 8
    metrics.finish_step(1, sums=step, gradient_norm=torch.tensor(1.0), lr=0.1)
    (record,) = metrics.drain()
    assert (record.loss, record.further, record.num_tokens) == (pytest.approx(1.0), (2.0,), 200)
