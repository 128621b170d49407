"""GRPO: its loss, its answers, its rewards."""

import math
import re
import sys
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch

from lmtrain.errors import DataError
from lmtrain.training.objectives.grpo import (
    MEASURES,
    GroupRelativePolicy,
    WrittenAnswers,
    group_relative_policy_facts,
)
from lmtrain.training.objectives.policy_loss import PolicyLoss, group_advantages
from lmtrain.training.objectives.rewards import (
    RewardScorer,
    WrittenAnswer,
    near_text,
    right_number,
    right_text,
    whole_answer,
)
from lmtrain.training.token_batch import TokenBatch
from tests.adapters.test_low_rank import small

NUM_ANSWERS, NUM_TOKENS = 6, 9


def drawn() -> SimpleNamespace:
    """Return log-probabilities now, then and of a reference, far enough apart to clip, and answers' masks."""
    generator = torch.Generator().manual_seed(0)
    now, old, reference = (-torch.rand(NUM_ANSWERS, NUM_TOKENS, generator=generator) for _ in range(3))
    ends = torch.tensor([2, 9, 5, 1, 7, 3])
    mask = torch.arange(NUM_TOKENS) < ends[:, None]
    advantages = torch.randn(NUM_ANSWERS, generator=generator)
    return SimpleNamespace(now=now.requires_grad_(), old=old, reference=reference, mask=mask, advantages=advantages)


def theirs(data: SimpleNamespace, *, beta: float, has_old: bool, loss_type="dapo", level="token", delta=None):
    trainer = pytest.importorskip("trl.trainer.grpo_trainer").GRPOTrainer
    zeros = torch.zeros_like(data.now)
    metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    place = SimpleNamespace(device="cpu", num_processes=1, gather=lambda one: one, reduce=lambda one, **_: one)
    held = SimpleNamespace(
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(
            delta=delta,
            use_bias_correction_kl=False,
            steps_per_generation=1,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            vespo_k_pos=2.0,
            vespo_lambda_pos=3.0,
            vespo_k_neg=3.0,
            vespo_lambda_neg=2.0,
        ),
        get_gamma_weights=trainer.get_gamma_weights,
        accelerator=place,
        beta=beta,
        loss_type=loss_type,
        epsilon_low=0.2,
        epsilon_high=0.28,
        max_completion_length=16,
        importance_sampling_level=level,
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


@pytest.mark.parametrize(
    "changed",
    [
        *({"loss_type": name} for name in ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo")),
        *({"loss_type": name, "level": "sequence"} for name in ("grpo", "luspo")),
        {"delta": 1.4},
    ],
    ids=str,
)
@pytest.mark.parametrize(("beta", "has_old"), [(0.0, False), (0.04, True)])
def test_loss_and_gradient_are_those_of_trl(changed, beta, has_old) -> None:
    data = drawn()
    settings = {"loss_type": "dapo", "importance_level": changed.get("level", "token"), **changed}
    settings.pop("level", None)
    loss = PolicyLoss(beta=beta, epsilon=0.2, epsilon_high=0.28, num_new_tokens=16, **settings)
    sums = loss(
        data.now,
        data.mask,
        advantages=data.advantages,
        old=data.old if has_old else None,
        reference=data.reference if beta else None,
    )
    ours = sums.loss / sums.divisor
    expected, metrics = theirs(data, beta=beta, has_old=has_old, **changed)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)
    (mine,), (their,) = (torch.autograd.grad(one, data.now, retain_graph=True) for one in (ours, expected))
    torch.testing.assert_close(mine, their, rtol=1e-5, atol=1e-7)
    lengths = data.mask.sum(-1)
    if has_old:
        assert float((sums.divergence * lengths).sum() / lengths.sum()) == pytest.approx(metrics["kl"][0], rel=1e-5)
    if has_old and "clip_ratio/region_mean" in metrics and "level" not in changed:
        clipped = float((sums.clipped * lengths).sum() / lengths.sum())
        assert clipped == pytest.approx(metrics["clip_ratio/region_mean"][0])
        assert clipped > 0


def test_rloo_is_that_of_trl() -> None:
    trainer = pytest.importorskip("trl.trainer.rloo_trainer").RLOOTrainer
    data, place = drawn(), SimpleNamespace(gather=lambda one: one, reduce=lambda one, **_: one)
    held = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=place,
        epsilon_low=0.2,
        epsilon_high=0.28,
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (data.now, torch.zeros_like(data.now), None),
    )
    empty = torch.zeros(NUM_ANSWERS, NUM_TOKENS).long()
    inputs = {"prompt_ids": empty, "prompt_mask": empty, "completion_ids": empty, "completion_mask": data.mask.long()}
    inputs |= {"advantages": data.advantages, "old_logps": (data.old * data.mask).sum(-1)}
    expected = trainer._compute_loss(held, held.model, inputs)
    loss = PolicyLoss(beta=0.1, epsilon=0.2, epsilon_high=0.28, num_new_tokens=16, loss_type="rloo")
    sums = loss(data.now, data.mask, advantages=data.advantages, old=data.old, reference=data.reference)
    ours = sums.loss / sums.divisor
    torch.testing.assert_close(ours, expected)
    (mine,), (their,) = (torch.autograd.grad(one, data.now, retain_graph=True) for one in (ours, expected))
    torch.testing.assert_close(mine, their)


def test_rloo_compares_with_the_others_and_has_the_divergence_in_its_rewards() -> None:
    policy, _, batch = made(loss_type="rloo", beta=0.5, scale_rewards="none", num_iterations=2)
    assert group_relative_policy_facts(loss_type="rloo").task == policy.task == "rloo"
    model = small()
    policy.keep_start(model)
    policy.begin(step=0, micro_step=0, seed=0)
    policy(model, batch)
    kept = policy.state()
    assert kept is not None
    (written,) = kept["written"]
    mask, old, start = written["mask"], written["log_probs"], written["log_probs"] - 0.25 * written["mask"]
    rewards = torch.tensor([1.0, 0.0, 2.0, 0.0]) - 0.5 * 0.25 * mask.sum(-1)
    log_probs = old.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(policy._sums(WrittenAnswers(**written), log_probs, start).objective, log_probs)
    others = rewards.view(2, 2).flip(-1).flatten()
    torch.testing.assert_close(gradient, -(rewards - others)[:, None] * mask)


def test_answers_that_were_cut_teach_nothing_where_masked() -> None:
    policy, _, batch = made(mask_truncated=True)
    policy.begin(step=0, micro_step=0, seed=1)
    written = FixedWriter()(None, batch, copies=2, seed=0)._replace(ended=torch.tensor([True, False, False, False]))
    log_probs = torch.zeros(4, 11, requires_grad=True)
    (gradient,) = torch.autograd.grad(policy._sums(written, log_probs, None).objective, log_probs)
    assert gradient.any(dim=-1).tolist() == [True, False, False, False]


def test_advantages_are_those_of_trl_and_equal_rewards_teach_nothing() -> None:
    rewards = torch.tensor([1.0, 0, 0, 1, 0.5, 0.5, 0.5, 0.5, 3, 1, 2, 0])
    advantages, spreads = group_advantages(rewards, num_generations=4, scales=True)
    grouped = rewards.view(3, 4)
    mean, spread = grouped.mean(1, keepdim=True), grouped.std(1, keepdim=True)
    torch.testing.assert_close(advantages.view(3, 4), (grouped - mean) / (spread + 1e-4))
    assert advantages[4:8].tolist() == [0.0] * 4
    assert (spreads == 0).tolist() == [False, True, False]
    plain, _ = group_advantages(rewards, num_generations=4, scales=False)
    torch.testing.assert_close(plain.view(3, 4), grouped - mean)


REWARDS = {"text": right_text}


class FixedWriter:
    """Gives the same answers each time, and counts how often it is asked."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def __call__(self, model, batch, /, *, copies, seed) -> WrittenAnswers:
        self.seeds.append(seed)
        mask = torch.zeros(4, 11, dtype=torch.bool)
        mask[:3, 4:7] = True  # the last group's second row was not asked
        rewards = torch.tensor([1.0, 0.0, 2.0, 0.0])
        asked = torch.tensor([True, True, True, False])
        return WrittenAnswers(batch.ids.long(), mask, rewards, rewards[:, None], asked, asked)


def made(**settings):
    policy = GroupRelativePolicy(rewards=REWARDS, num_generations=2, **settings)
    writer = FixedWriter()
    policy.write_with(lambda _: writer)
    ids = torch.randint(250, (4, 12), generator=torch.Generator().manual_seed(0))
    return policy, writer, TokenBatch(ids, None, torch.ones(4, 11, dtype=torch.bool))


def test_a_step_reports_means_over_the_answers_that_were_asked() -> None:
    policy, _, batch = made()
    policy.begin(step=0, micro_step=0, seed=1)
    sums = policy(small(), batch)
    divisor, examples, *means = (sums.further / sums.further[1]).tolist()
    named = dict(zip(policy.measures, means, strict=True))
    assert (float(sums.further[0]), divisor * 3, examples) == (9, 9, 1)
    assert (named["reward/mean"], named["reward/text"], named["rollout/tokens"]) == (1, 1, 3)
    assert named["rollout/taught_tokens"] == 3, "both groups have different rewards"
    assert policy.measures[: len(MEASURES)] == MEASURES
    sums.objective.backward()


def test_answers_serve_their_steps_and_a_checkpoint_between_holds_them() -> None:
    policy, writer, batch = made(num_iterations=2)
    model = small()
    policy.begin(step=0, micro_step=0, seed=0)
    first = policy(model, batch)
    kept = policy.state()
    assert kept is not None
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    policy.begin(step=1, micro_step=0, seed=1)
    moved = policy(model, batch)
    assert policy.state() is None
    assert writer.seeds == [0]
    assert not torch.equal(first.objective, moved.objective)  # the ratio is no longer 1
    other, silent, _ = made(num_iterations=2)
    other.load(kept)
    other.begin(step=1, micro_step=0, seed=1)
    assert torch.equal(other(model, batch).objective, moved.objective)
    assert silent.seeds == []


def test_the_starting_model_is_kept_for_a_divergence() -> None:
    policy, _, batch = made(beta=0.5)
    assert group_relative_policy_facts(beta=0.5).keeps_start
    model = small()
    policy.keep_start(model)
    place = list(policy.measures).index("policy/divergence") + 2
    values = []
    for _ in range(2):
        policy.begin(step=0, micro_step=0, seed=0)
        values.append(float(policy(model, batch).further[place].detach()))
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.1)
    assert values[0] == pytest.approx(0, abs=1e-9)
    assert values[1] > 1e-4


def answer(text: str, expected: str = "12", *, ended: bool = True) -> WrittenAnswer:
    return WrittenAnswer(text=text, question="7 + 5?", expected=expected, ended=ended)


def raised(problem: Exception) -> NoReturn:
    raise problem


@pytest.mark.parametrize(
    ("reward", "given", "value"),
    [
        (right_text, answer(" 12 "), 1),
        (right_text, answer("12", ended=False), 0),
        (right_number, answer("so #### 12.0"), 1),
        (right_number, answer("12 or 13"), 0),
        (right_number, answer("1,012", "1012"), 1),
        (right_number, answer("none"), 0),
        (near_text, answer("abXd", "abcd"), 0.75),
        (near_text, answer("", ""), 0),
        (whole_answer, answer("x", ended=False), 0),
    ],
)
def test_rewards_that_can_be_checked(reward, given, value) -> None:
    assert reward(given) == value


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (lambda _: 1 / 0, "mine raised ZeroDivisionError: division by zero on the answer 'bad' to"),
        (lambda _: math.nan, "mine must give one finite number .* got nan on the answer 'bad' to '7"),
        (lambda _: torch.tensor([1.0, 2.0]), r"mine must give .* got tensor\(\[1., 2.\]\) on"),
        (lambda _: raised(RuntimeError("two\nlines")), "mine raised RuntimeError: two lines on the answer"),
        (lambda _: sys.exit(), "mine raised SystemExit"),
        (lambda _: threading.Event().wait(), r"mine took longer than 0\.05 s on the answer 'bad'"),
    ],
)
def test_a_reward_that_fails_costs_one_answer_and_ends_a_run_that_it_never_scored(fail, message, recwarn) -> None:
    def scorer() -> RewardScorer:
        rewards = {"mine": lambda given: fail(given) if given.text == "bad" else 3, "end": whole_answer}
        return RewardScorer(rewards, weights={"mine": 2}, timeout_seconds=0.05)

    score = scorer()
    for _ in range(2):
        each, sums = score([answer("12"), answer("bad")])
        assert (sums[0], each[0], each[1][1]) == (7, [3, 1], 1)
        assert math.isnan(sums[1])
    (warned,) = (str(one.message) for one in recwarn if "objective.rewards" in str(one.message))  # the first time
    assert re.match(f"objective.rewards.{message}", warned)
    with pytest.raises(DataError, match=f"objective.rewards.{message}") as refused:
        scorer()([answer("bad")])
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 4


def test_an_answer_without_a_reward_teaches_nothing_and_is_counted() -> None:
    rewards = torch.tensor([1.0, math.nan, 0, 2, math.nan, 3, math.nan, math.nan, *[math.nan] * 4])
    for leaves_one_out, factor in ((False, 1), (True, 1.5)):
        advantages, spreads = group_advantages(rewards, num_generations=4, scales=False, leaves_one_out=leaves_one_out)
        assert advantages.tolist() == [0, 0, -factor, factor, *[0] * 8]
        assert spreads.tolist() == [1, 0, 0]
    policy, writer, batch = made()
    written = writer(None, batch, copies=2, seed=0)
    failed = written._replace(rewards=torch.tensor([1.0, math.nan, 2, 0]), each_reward=torch.full((4, 1), math.nan))
    sums = policy._sums(failed, torch.zeros(4, 11, requires_grad=True), None)
    named = dict(zip(policy.measures, (sums.further[2:] / sums.further[1]).tolist(), strict=True))
    assert named["reward/failed"] == pytest.approx(1 / 3)
    assert (named["reward/mean"], named["reward/text"]) == (pytest.approx(1.5), 0)
    assert torch.isfinite(sums.objective)
