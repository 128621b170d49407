"""The reference is TRL: the loss of its trainer on the same log-probabilities, for each of its normalizations."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from lmtrain.training.objectives.grpo import PolicyLoss, group_advantages

NUM_ANSWERS, NUM_TOKENS = 6, 9


def drawn() -> SimpleNamespace:
    """Return log-probabilities now, then and of a reference, far enough apart to clip, and answers' masks."""
    generator = torch.Generator().manual_seed(0)
    now, old, reference = (-torch.rand(NUM_ANSWERS, NUM_TOKENS, generator=generator) for _ in range(3))
    ends = torch.tensor([2, 9, 5, 1, 7, 3])
    mask = torch.arange(NUM_TOKENS) < ends[:, None]
    advantages = torch.randn(NUM_ANSWERS, generator=generator)
    return SimpleNamespace(now=now.requires_grad_(), old=old, reference=reference, mask=mask, advantages=advantages)


def theirs(data: SimpleNamespace, *, loss_type: str, beta: float, has_old: bool):
    trainer = pytest.importorskip("trl.trainer.grpo_trainer").GRPOTrainer
    zeros = torch.zeros_like(data.now)
    metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    place = SimpleNamespace(device="cpu", num_processes=1, gather=lambda one: one, reduce=lambda one, **_: one)
    held = SimpleNamespace(
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=place,
        beta=beta,
        loss_type=loss_type,
        epsilon_low=0.2,
        epsilon_high=0.28,
        max_completion_length=16,
        importance_sampling_level="token",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        _metrics=metrics,
        _get_per_token_logps_and_entropies=lambda *_, **__: (data.now, zeros, None),
    )
    inputs = {
        "prompt_ids": torch.zeros(NUM_ANSWERS, 2).long(),
        "prompt_mask": torch.ones(NUM_ANSWERS, 2).long(),
        "completion_ids": torch.zeros(NUM_ANSWERS, NUM_TOKENS).long(),
        "completion_mask": data.mask.long(),
        "advantages": data.advantages,
        "old_per_token_logps": data.old if has_old else None,
        "ref_per_token_logps": data.reference,
        "num_items_in_batch": data.mask.sum(),
    }
    return trainer._compute_loss(held, held.model, inputs), metrics["train"]


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo", "dr_grpo"])
@pytest.mark.parametrize(("beta", "has_old"), [(0.0, False), (0.04, True)])
def test_loss_and_gradient_are_those_of_trl(loss_type, beta, has_old) -> None:
    data = drawn()
    loss = PolicyLoss(beta=beta, epsilon=0.2, epsilon_high=0.28, loss_type=loss_type, num_new_tokens=16)
    sums = loss(
        data.now,
        data.mask,
        advantages=data.advantages,
        old=data.old if has_old else None,
        reference=data.reference if beta else None,
    )
    ours = sums.loss / sums.divisor
    expected, metrics = theirs(data, loss_type=loss_type, beta=beta, has_old=has_old)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)
    (mine,), (their,) = (torch.autograd.grad(one, data.now, retain_graph=True) for one in (ours, expected))
    torch.testing.assert_close(mine, their, rtol=1e-5, atol=1e-7)
    if has_old:
        lengths = data.mask.sum(-1)
        assert float((sums.clipped * lengths).sum() / lengths.sum()) == pytest.approx(
            metrics["clip_ratio/region_mean"][0]
        )
        assert float((sums.divergence * lengths).sum() / lengths.sum()) == pytest.approx(metrics["kl"][0], rel=1e-5)
        assert sums.clipped.sum() > 0


def test_advantages_are_those_of_trl_and_equal_rewards_teach_nothing() -> None:
    rewards = torch.tensor([1.0, 0, 0, 1, 0.5, 0.5, 0.5, 0.5, 3, 1, 2, 0])
    groups = group_advantages(rewards, num_generations=4, scales=True)
    grouped = rewards.view(3, 4)
    mean, spread = grouped.mean(1, keepdim=True), grouped.std(1, keepdim=True)
    torch.testing.assert_close(groups.advantages.view(3, 4), (grouped - mean) / (spread + 1e-4))
    assert groups.advantages[4:8].tolist() == [0.0] * 4
    assert groups.is_equal.tolist() == [False, True, False]
    plain = group_advantages(rewards, num_generations=4, scales=False)
    torch.testing.assert_close(plain.advantages.view(3, 4), grouped - mean)
