"""Group relative policy optimization (arXiv 2402.03300): the model writes answers, and those above their group gain.

A step writes `num_generations` answers to each of its questions with the weights it is about to move, rewards them, and
follows the gradient of `policy_loss`. `num_iterations` steps may learn from the same answers; the ratio to the weights
that wrote them is then no longer 1, and is clipped. B answers, T tokens.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any, Final, Literal, final

import torch
from torch import Tensor

from lmtrain.accounting.observed.metric_names import EQUAL_GROUPS, REWARD
from lmtrain.accounting.options.parts import ObjectiveFacts
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.losses.token_log_probs import TokenLogProbs
from lmtrain.models.base import LanguageModel
from lmtrain.training.batches.token_batch import TokenBatch, training_tokens
from lmtrain.training.objectives.objective import ObjectiveSums, require_dense
from lmtrain.training.objectives.policy_loss import LossType, PolicyLoss, group_advantages
from lmtrain.training.objectives.written_answers import AnswerWriter, MakeWriter, WritingSettings, WrittenAnswers

MEASURES: Final = (
    *(REWARD, "reward/spread", EQUAL_GROUPS),
    *("rollout/tokens", "rollout/ended", "policy/divergence", "policy/clipped"),
)


def group_relative_policy_facts(
    num_generations: int = 8, num_new_tokens: int = 64, num_iterations: int = 1, beta: float = 0.0
) -> ObjectiveFacts:
    """Write answers to copies of a row; with a divergence the starting model stays in memory."""
    return ObjectiveFacts(
        task="grpo",
        copies=num_generations,
        num_uses=num_iterations,
        num_new_tokens=num_new_tokens,
        keeps_start=beta > 0,
    )


@final
class GroupRelativePolicy:
    """GRPO by `rewards`, each a function of an answer by name, summed with `weights` (1 where none is given).

    `num_generations` answers of at most `num_new_tokens` are drawn at `temperature` from the `top_k` likeliest tokens
    and as few as reach `top_p`. `beta` weighs the divergence from the model that the run starts from.
    `epsilon_high` None is `epsilon`. `scale_rewards` none leaves advantages undivided by their group's spread.

    Raises:
        ConfigurationError: A number that cannot be, no reward, or a weight of none.
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
    ) -> None:
        self.num_generations, self._num_iterations = num_generations, num_iterations
        high = epsilon if epsilon_high is None else epsilon_high
        _require_counts(num_generations=num_generations, num_new_tokens=num_new_tokens, num_iterations=num_iterations)
        _require_numbers(beta=beta, temperature=temperature, epsilon=epsilon, epsilon_high=high)
        _require_rewards(rewards, weights or {})
        self._rewards, self._scales = tuple(rewards), scale_rewards == "group"
        self._writing = WritingSettings(
            num_new_tokens=num_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            rewards=rewards,
            weights=weights or {},
        )
        self._loss = PolicyLoss(
            beta=beta, epsilon=epsilon, epsilon_high=high, loss_type=loss_type, num_new_tokens=num_new_tokens
        )
        self._log_probs = TokenLogProbs(temperature=temperature)
        self._write: AnswerWriter | None = None
        self._start: LanguageModel | None = None
        self._step, self._micro_step, self._seed = 0, 0, 0
        self._written: list[WrittenAnswers] = []  # of the steps with the same answers

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the names of the means over answers."""
        return (*MEASURES, *(f"reward/{name}" for name in self._rewards))

    @property
    def num_iterations(self) -> int:
        """Return how many steps learn from the same answers."""
        return self._num_iterations

    def require(self, model: LanguageModel) -> None:
        """Refuse a mixture of experts, whose penalty is of next tokens.

        Raises: ConfigurationError.
        """
        require_dense(model, task="grpo")

    def write_with(self, make: MakeWriter) -> None:
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
        groups = group_advantages(written.rewards, num_generations=self.num_generations, scales=self._scales)
        sums = self._loss(
            log_probs, written.mask, advantages=groups.advantages, old=written.log_probs, reference=reference
        )
        copies, asked = self.num_generations, written.is_asked
        of_answers = [
            written.rewards,
            groups.spreads.repeat_interleave(copies),
            groups.is_equal.repeat_interleave(copies),
            written.mask.sum(dim=-1),
            *(written.ended, sums.divergence, sums.clipped),
            *written.each_reward.unbind(dim=-1),
        ]
        means = [(one * asked).sum(dtype=torch.float64) for one in of_answers]
        counts = [sums.divisor.double(), asked.sum(dtype=torch.float64)]
        return ObjectiveSums(
            objective=sums.loss,
            nats=sums.loss.detach().double(),
            num_tokens=written.mask.sum(),
            further=torch.stack([*counts, *means]),
        )


def _require_counts(**counts: int) -> None:
    least = {"num_generations": 2}
    for name, count in counts.items():
        if count < (fewest := least.get(name, 1)):
            why = ": an answer is compared with others of its group" if name in least else ""
            raise ConfigurationError(f"objective.{name}={count} is below {fewest}{why}; nearest valid: {fewest}.")


def _require_numbers(*, beta: float, **above: float) -> None:
    if not 0 <= beta < math.inf:
        raise ConfigurationError(f"objective.beta={beta:g} is not a number from 0 on; nearest valid: 0.")
    usual = {"temperature": 1.0, "epsilon": 0.2, "epsilon_high": 0.28}
    for name, value in above.items():
        if not 0 < value < math.inf:
            raise ConfigurationError(f"objective.{name}={value:g} is not above 0; {usual[name]:g} is usual.")


def _require_rewards(rewards: Mapping[str, Any], weights: Mapping[str, float]) -> None:
    if not rewards:
        raise ConfigurationError(
            "objective.rewards={} rewards nothing; nearest valid: "
            "+objective.rewards.text._target_=lmtrain.training.objectives.rewards.right_text."
        )
    for name, weight in weights.items():
        if name not in rewards:
            raise ConfigurationError(
                f"objective.weights.{name} weighs no reward; objective.rewards has {', '.join(rewards)}."
            )
        if not math.isfinite(weight):
            raise ConfigurationError(f"objective.weights.{name}={weight:g} is no finite number; nearest valid: 1.")
