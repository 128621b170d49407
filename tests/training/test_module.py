"""A step of the module: its loss, gradients, random numbers, schedules."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.head import LossTotal
from lmtrain.training.hyperparameters import Hyperparameters
from lmtrain.training.module import keyed_seed, materialize
from lmtrain.training.step_metrics import StepMetrics
from tests.training.short_run import LR, SEQUENCES_PER_STEP, meta_model, train, weights

RELATIVE_FP32 = 2e-6


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=RELATIVE_FP32 * expected.abs().max().item())


def without_small_ids(project, hidden, targets):
    """Score only targets of 100 and above, so that sequences have different numbers of valid targets."""
    return CrossEntropy()(project, hidden, targets.masked_fill(targets < 100, -100))


def plain_torch_step(sequences, *, clip=None):
    """Return loss, gradient norm and weights after one step over all sequences [4, T + 1] at once."""
    model = materialize(meta_model(), device=torch.device("cpu"), seed=7)
    sequences = sequences.long()
    targets = sequences[:, 1:].masked_fill(sequences[:, 1:] < 100, -100)
    loss = F.cross_entropy(model(sequences[:, :-1]).flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
    torch.optim.SGD(model.parameters(), lr=LR).step()
    return loss.item(), norm.item(), torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("clip", [None, 0.1, 100.0])
@pytest.mark.parametrize("micro_batch_sequences", [4, 2, 1])
def test_a_step_is_the_mean_over_its_valid_targets_however_it_is_split(
    data_folder, tmp_path, micro_batch_sequences, clip
):
    module, batches = train(
        data_folder,
        tmp_path,
        micro_batch_sequences=micro_batch_sequences,
        loss=without_small_ids,
        gradient_clip_norm=clip,
    )
    assert len(batches) == SEQUENCES_PER_STEP // micro_batch_sequences
    num_valid = [int((batch[:, 1:].long() >= 100).sum()) for batch in batches]
    assert len(num_valid) == 1 or len(set(num_valid)) > 1, "equal counts would let a mean of means pass"
    loss, norm, expected = plain_torch_step(torch.cat(batches), clip=clip)
    assert_close(weights(module), expected)
    record = module.step_metrics.drain()[0]
    assert (record.loss, record.gradient_norm) == pytest.approx((loss, norm), rel=RELATIVE_FP32)
    assert clip != 0.1 or norm > 2 * clip, "the clip did not act"


def no_loss(project, hidden, targets):
    """Score no target."""
    return CrossEntropy()(project, hidden, torch.full_like(targets, -100))


def penalty_alone(project, hidden, targets):
    """Score no target, and penalise hidden states, as a router's penalty does."""
    total = no_loss(project, hidden, targets)
    return total._replace(objective=total.objective + hidden.square().sum())


def test_a_penalty_of_a_step_without_any_loss_is_divided_by_one_token(data_folder, tmp_path):
    clipped, free = (
        train(data_folder, tmp_path, loss=penalty_alone, gradient_clip_norm=clip)[0].step_metrics.drain()[0]
        for clip in (0.1, None)
    )
    assert 0 < free.gradient_norm < float("inf")
    assert free.gradient_norm == clipped.gradient_norm
    assert (free.num_tokens, free.was_skipped) == (0, False)


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("fused", [True, False])
def test_a_step_in_which_no_token_carries_loss_changes_nothing(data_folder, tmp_path, fused, clip):
    def adamw(model):
        return torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=fused)

    module, _ = train(data_folder, tmp_path, loss=no_loss, gradient_clip_norm=clip, optimizer=adamw)
    model = materialize(meta_model(), device=torch.device("cpu"), seed=7)
    assert torch.equal(weights(module), torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))


@pytest.mark.parametrize("fused", [True, False])
def test_clipping_inside_a_fused_step_is_clipping_before_it(data_folder, tmp_path, fused):
    def adamw(model, *, is_fused):
        return torch.optim.AdamW(model.parameters(), lr=LR, eps=1e-3, fused=is_fused)

    trained, batches = train(
        data_folder, tmp_path, gradient_clip_norm=0.1, optimizer=partial(adamw, is_fused=fused), loss=CrossEntropy()
    )
    model = materialize(meta_model(), device=torch.device("cpu"), seed=7)
    ids = torch.cat(batches).long()
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.2, "the clip did not act"
    adamw(model, is_fused=False).step()
    assert_close(weights(trained), torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))


def test_a_run_goes_on_with_another_number_of_micro_steps(data_folder, tmp_path):
    straight, _ = train(data_folder, tmp_path, steps=4, micro_batch_sequences=2)
    saved = tmp_path / "step_00000002"
    train(data_folder, tmp_path, steps=2, micro_batch_sequences=2, save_to=saved)
    losses = [record.loss for record in straight.step_metrics.drain()]
    for micro_batch_sequences in (1, 2, 4):
        resumed, batches = train(
            data_folder, tmp_path, steps=4, micro_batch_sequences=micro_batch_sequences, checkpoint=saved
        )
        records = resumed.step_metrics.drain()
        assert [record.step for record in records] == [3, 4]
        assert [record.loss for record in records] == pytest.approx(losses[2:], rel=RELATIVE_FP32)
        assert len(batches) == 2 * SEQUENCES_PER_STEP // micro_batch_sequences
        assert_close(weights(resumed), weights(straight))


def test_every_micro_step_has_random_numbers_of_its_own_that_depend_on_nothing_before(data_folder, tmp_path):
    def draw(disturbance, **settings):
        drawn = []

        def loss(*arguments):
            drawn.append(torch.rand(()).item())
            return CrossEntropy()(*arguments)

        torch.manual_seed(disturbance)
        train(data_folder, tmp_path, micro_batch_sequences=2, loss=loss, steps=3, **settings)
        return drawn

    first = draw(0, save_to=tmp_path / "step_00000003")
    assert len(set(first)) == 6
    assert draw(1) == first
    assert draw(2, seed=8) != first


def test_a_model_on_meta_gets_the_weights_of_its_seed():
    one, same, other = (materialize(meta_model(), device=torch.device("cpu"), seed=seed) for seed in (1, 1, 2))
    assert not any(tensor.is_meta for tensor in one.state_dict().values())
    for (name, tensor), (_, again) in zip(one.named_parameters(), same.named_parameters(), strict=True):
        assert tensor.isfinite().all(), name
        assert torch.equal(tensor, again), name
    assert not torch.equal(one.head.weight, other.head.weight)


def test_a_keyed_seed_is_the_same_on_every_machine():
    # The first numbers of SplitMix64 from 1234567 and from 0, as published with it; without the lowest bit.
    assert keyed_seed(1234567) == 6457827717110365317 >> 1
    assert keyed_seed(0) == 0xE220A8397B1DCDAF >> 1


def half(step, total_steps):
    return step / total_steps


@pytest.mark.parametrize(
    ("optimizer", "brought"),
    [
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True), {"nesterov": False}),
        (partial(torch.optim.RMSprop, alpha=0.9), {"alpha": 0.5}),
        (partial(torch.optim.Adafactor, beta2_decay=-0.7, d=2.0), {"beta2_decay": -0.8, "d": 1.0}),
    ],
)
def test_every_setting_of_an_optimizer_is_the_config_s_after_a_resume(optimizer, brought) -> None:
    made = optimizer([torch.nn.Parameter(torch.zeros(2, 2))])
    configured = {name: made.param_groups[0][name] for name in brought}
    settings = Hyperparameters(made, lr=half)
    made.param_groups[0].update(brought)
    settings.set_for(5, 10)
    assert {name: made.param_groups[0][name] for name in brought} == configured


def total(nats, num_tokens, device="cpu"):
    nats = torch.tensor(nats, dtype=torch.float64, device=device, requires_grad=device == "cpu")
    return LossTotal(objective=nats, nats=nats, num_tokens=torch.tensor(num_tokens, device=device))


def test_sums_are_exact_where_fp32_drops_a_token():
    metrics = StepMetrics()
    metrics.add_micro_step(total(float(2**24), 2**24))
    metrics.add_micro_step(total(1.0, 1))
    assert metrics.reduce_micro_steps()[:2] == (2**24 + 1, 2**24 + 1)
