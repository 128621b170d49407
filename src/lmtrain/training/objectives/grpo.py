"""Group relative policy optimization (arXiv 2402.03300): the model writes answers, and those above their group gain.

A step writes `num_generations` answers to each of its questions with the weights it is about to move, rewards them, and
follows the gradient of `policy_loss`. `num_iterations` steps may learn from the same answers; the ratio to the weights
that wrote them is then no longer 1, and is clipped. B answers, T tokens.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, final

import torch
from torch import Tensor

from lmtrain.accounting.observed.metric_names import ANSWER_TOKENS, EQUAL_GROUPS, REWARD, TAUGHT_TOKENS
from lmtrain.accounting.options.parts import ObjectiveFacts
from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.losses.log_probs import TokenLogProbs
from lmtrain.models.base import LanguageModel
from lmtrain.training.objectives.objective import Objective, ObjectiveSums
from lmtrain.training.objectives.policy_loss import LossType, PolicyLoss, group_advantages
from lmtrain.training.objectives.rewards import Reward
from lmtrain.training.token_batch import TokenBatch, training_tokens

MEASURES: Final = (
    *(REWARD, "reward/failed", "reward/spread", EQUAL_GROUPS),
    *(ANSWER_TOKENS, TAUGHT_TOKENS, "rollout/ended", "policy/divergence", "policy/clipped"),
)


@dataclass(frozen=True, kw_only=True)
class WritingSettings:
    """Answers of at most `num_new_tokens`, drawn at `temperature` from the `top_k` likeliest (None: all) and `top_p`.

    Each of `rewards` counts by its weight, 1 where `weights` has none, and has `reward_timeout_seconds` an answer.
    """

    num_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float
    rewards: Mapping[str, Reward]
    weights: Mapping[str, float]
    reward_timeout_seconds: float | None = None


class WrittenAnswers(NamedTuple):
    """Ids [B, T + 1] of prompts and answers, bool `mask` [B, T] of the answers' targets, `rewards` [B] and [B, R].

    A reward that failed is NaN. `ended` bool [B] marks the answers that the model ended itself, `is_asked` bool [B] the
    rows that held a question with room for an answer. `log_probs` fp32 [B, T] are those of the weights that wrote; None
    while these have not moved.
    """

    ids: Tensor
    mask: Tensor
    rewards: Tensor
    each_reward: Tensor
    ended: Tensor
    is_asked: Tensor
    log_probs: Tensor | None = None

    def to_checkpoint(self) -> dict[str, Any]:
        """Return the tensors by name, on the CPU."""
        return {name: None if part is None else part.cpu() for name, part in self._asdict().items()}


# Writes an answer to the last question of each row [B, T + 1], equal rows in groups of `copies`, drawn by `seed`.
AnswerWriter = Callable[..., WrittenAnswers]  # (model, batch, *, copies, seed)


def group_relative_policy_facts(
    num_generations: int = 8,
    num_new_tokens: int = 64,
    num_iterations: int = 1,
    beta: float = 0.0,
    loss_type: str = "dapo",
) -> ObjectiveFacts:
    """Write answers to copies of a row; with a divergence the starting model stays in memory."""
    return ObjectiveFacts(
        task="rloo" if loss_type == "rloo" else "grpo",
        copies=num_generations,
        num_uses=num_iterations,
        num_new_tokens=num_new_tokens,
        keeps_start=beta > 0,
    )


@final
class GroupRelativePolicy(Objective):
    """GRPO by `rewards`, each a function of an answer by name, summed with `weights` (1 where none is given).

    `num_generations` answers of at most `num_new_tokens` are drawn at `temperature` from the `top_k` likeliest tokens
    and as few as reach `top_p`. `beta` weighs the divergence from the model that the run starts from. `epsilon` to
    `delta` are those of `PolicyLoss`; with `loss_type` rloo an answer's advantage is over the others of its group, and
    the divergence is in the rewards. `scale_rewards` none leaves advantages undivided by their group's spread.
    `mask_truncated` learns nothing from cut answers, nor is anything learned from answers whose reward failed.
    """

    def __init__(
        self,
        *,
        rewards: Mapping[str, Any],
        weights: dict[str, float] | None = None,
        num_generations: int = 8,
        num_new_tokens: int = 64,
        num_iterations: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        beta: float = 0.0,
        epsilon: float = 0.2,
        epsilon_high: float | None = None,
        loss_type: LossType = "dapo",
        scale_rewards: Literal["group", "none"] = "group",
        importance_level: Literal["token", "sequence"] = "token",
        delta: float | None = None,
        mask_truncated: bool = False,
        reward_timeout_seconds: float | None = 60.0,
    ) -> None:
        self.num_generations, self.num_iterations = num_generations, num_iterations
        require_number("objective.num_generations", num_generations, at_least=2, usual="8, a group to compare")
        for name, count in (("num_new_tokens", num_new_tokens), ("num_iterations", num_iterations)):
            require_count(f"objective.{name}", count)
        for name, value in (("temperature", temperature), ("reward_timeout_seconds", reward_timeout_seconds)):
            require_number(f"objective.{name}", value, above=0, usual="1" if name == "temperature" else "60")
        for name in weights or {} if rewards else ("",):
            if name not in rewards:
                key = f"objective.weights.{name}" if name else "objective.rewards"
                raise ConfigurationError(f"{key} must name a reward; there are: {', '.join(rewards) or 'none'}.")
        self._rewards, self._scales, self._masks_truncated = tuple(rewards), scale_rewards == "group", mask_truncated
        self._writing = WritingSettings(
            num_new_tokens=num_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            rewards=rewards,
            weights=weights or {},
            reward_timeout_seconds=reward_timeout_seconds,
        )
        self._loss = PolicyLoss(
            beta=beta,
            epsilon=epsilon,
            epsilon_high=epsilon_high,
            loss_type=loss_type,
            num_new_tokens=num_new_tokens,
            importance_level=importance_level,
            delta=delta,
        )
        self._log_probs = TokenLogProbs(temperature=temperature)
        self._write: AnswerWriter | None = None
        self._start: LanguageModel | None = None
        self._step, self._micro_step, self._seed = 0, 0, 0
        self._written: list[WrittenAnswers] = []  # of the steps with the same answers

    @property
    def task(self) -> str:
        """Return the word of the task."""
        return group_relative_policy_facts(loss_type=self._loss.loss_type).task

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the names of the means over answers."""
        return (*MEASURES, *(f"reward/{name}" for name in self._rewards))

    def write_with(self, make: Callable[[WritingSettings], AnswerWriter]) -> None:
        """Take the run's writer."""
        self._write = make(self._writing)

    def keep_start(self, model: LanguageModel) -> None:
        """Keep a frozen copy of the model as the run starts from it."""
        self._start = copy.deepcopy(model).requires_grad_(requires_grad=False).eval()

    def begin(self, *, step: int, micro_step: int, seed: int) -> None:
        """Learn of the micro-batch about to come; answers to the same questions are written again from its seed."""
        if micro_step == 0 and step % self.num_iterations == 0:
            self._written.clear()
        self._step, self._micro_step, self._seed = step, micro_step, seed

    def state(self) -> dict[str, Any] | None:
        """Return the answers that coming steps learn from, None where they write new ones."""
        if (self._step + 1) % self.num_iterations == 0 or not self._written:
            return None
        return {"written": [one.to_checkpoint() for one in self._written]}

    def load(self, state: dict[str, Any]) -> None:
        """Take the answers of a checkpoint."""
        self._written = [WrittenAnswers(**one) for one in state["written"]]

    def __call__(self, model: LanguageModel, batch: Tensor | TokenBatch, /) -> ObjectiveSums:
        """Write answers, or take those written, and return their sums."""
        if not isinstance(batch, TokenBatch) or batch.loss_mask is None:
            raise DataError(
                "task=grpo asks the last question of conversations, and this data is text; take a source of messages."
            )
        written = self._answers(model, batch)
        inputs, targets, _ = training_tokens(TokenBatch(written.ids, None, written.mask))
        log_probs = model(inputs, targets, self._log_probs, None).objective
        if self.num_iterations > 1 and written.log_probs is None:
            self._written[self._micro_step] = written._replace(log_probs=log_probs.detach())
        return self._sums(written, log_probs, self._of_start(inputs, targets))

    def _answers(self, model: LanguageModel, batch: TokenBatch) -> WrittenAnswers:
        if self._micro_step < len(self._written):
            kept = self._written[self._micro_step]
            return WrittenAnswers(*(None if part is None else part.to(batch.ids.device) for part in kept))  # pyright: ignore[reportArgumentType]
        assert self._write is not None, "write_with comes first"
        written = self._write(model, batch, copies=self.num_generations, seed=self._seed)
        if self.num_iterations > 1:
            self._written.append(written)
        return written

    def _of_start(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return the starting model's log-probabilities [B, T], None where no divergence counts."""
        if self._start is None:
            return None
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            return self._start(inputs, targets, self._log_probs, None).objective

    def _sums(self, written: WrittenAnswers, log_probs: Tensor, reference: Tensor | None) -> ObjectiveSums:
        mask = written.mask & written.ended[:, None] if self._masks_truncated else written.mask
        rewards, is_rloo = written.rewards, self._loss.loss_type == "rloo"
        if is_rloo and reference is not None:
            old = log_probs.detach() if written.log_probs is None else written.log_probs
            rewards = rewards - self._loss.beta * ((old - reference) * mask).sum(dim=-1)
        advantages, spreads = group_advantages(
            rewards, num_generations=self.num_generations, scales=self._scales, leaves_one_out=is_rloo
        )
        sums = self._loss(
            log_probs,
            mask,
            advantages=advantages,
            old=written.log_probs,
            reference=reference,
            num_answers=written.mask.any(dim=-1).sum(),
        )
        copies, asked, num_tokens = self.num_generations, written.is_asked, written.mask.sum(dim=-1)
        is_equal = (spreads.abs() < 1e-8).repeat_interleave(copies)  # nothing is learned from equal rewards
        of_answers = [
            _filled(written.rewards, asked),
            written.rewards.isnan(),
            spreads.repeat_interleave(copies),
            is_equal,
            num_tokens,
            *(~is_equal * mask.sum(dim=-1), written.ended, sums.divergence, sums.clipped),
            *(_filled(one, asked) for one in written.each_reward.unbind(dim=-1)),
        ]
        means = [(one * asked).sum(dtype=torch.float64) for one in of_answers]
        counts = [sums.divisor.double(), asked.sum(dtype=torch.float64)]
        return ObjectiveSums(
            objective=sums.loss,
            nats=sums.loss.detach().double(),
            num_tokens=written.mask.sum(),
            further=torch.stack([*counts, *means]),
        )


def _filled(rewards: Tensor, is_asked: Tensor) -> Tensor:
    """Return rewards [B] with the mean of the others in place of those that failed."""
    mean = rewards.where(is_asked, torch.nan).nanmean().nan_to_num()
    return rewards.where(rewards.isfinite(), mean)
