"""Losses of preference pairs: the preferred answer gains on the other one, relative to a reference or without one.

DPO (arXiv 2305.18290) is -log sigmoid(beta ((log p(chosen) - log r(chosen)) - (log p(rejected) - log r(rejected)))) of
each pair, eq. 7, with log-probabilities summed over an answer's tokens; the reference r is the run's starting model.
`LOSSES` has its variants, by TRL's names. TRL's `aot` and `aot_unpaired` sort the pairs of a micro-batch, so their loss
would depend on its size; they are not here. B sequences, P = B / 2 pairs, the preferred answer first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtrain.accounting.options.parts import ObjectiveFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.errors import wrong
from lmtrain.models.base import LanguageModel
from lmtrain.models.head import LossTotal
from lmtrain.training.objectives.objective import Objective, ObjectiveSums
from lmtrain.training.objectives.reference import LOG_PROBS
from lmtrain.training.token_batch import TokenBatch, training_tokens

PreferenceLoss = Literal[
    "sigmoid",
    "sigmoid_norm",
    "hinge",
    "ipo",
    "robust",
    "exo_pair",
    "nca_pair",
    "bco_pair",
    "sppo_hard",
    "apo_zero",
    "apo_down",
    "discopop",
    "sft",
    "simpo",
    "orpo",
]
AVERAGED: Final = ("sigmoid_norm", "ipo", "simpo", "orpo")  # of an answer's tokens, where the others sum
SMOOTHED: Final = ("sigmoid", "sigmoid_norm", "robust", "exo_pair", "simpo")
DISCOPOP_TEMPERATURE: Final = 0.05  # TRL's and the paper's


def none() -> None:
    """Minimise the loss of next tokens."""


def direct_preference_facts(loss_type: str = "sigmoid") -> ObjectiveFacts:
    """Keep pairs together; the starting model scores them where the loss has a reference."""
    task = loss_type if loss_type in ("ipo", "simpo", "orpo") else "dpo"
    return ObjectiveFacts(task=task, rows_together=2, scores_ahead=loss_type not in ("sft", "simpo", "orpo"))


@final
@dataclass(frozen=True, kw_only=True)
class DirectPreference(Objective):
    """`beta` weighs the distance from the reference; `label_smoothing` is the share of pairs taken to be swapped.

    `loss_type` is a key of `LOSSES`. `simpo` and `orpo` have no reference, and `beta` scales mean log-probabilities or
    weighs the odds ratio; `gamma` is the margin that `simpo` asks for.
    """

    beta: float
    label_smoothing: float = 0.0
    loss_type: PreferenceLoss = "sigmoid"
    gamma: float = 0.0

    def __post_init__(self) -> None:
        require_number("objective.beta", self.beta, above=0, usual="0.1")
        require_number("objective.label_smoothing", self.label_smoothing, at_least=0, below=0.5, usual="0")
        if self.loss_type == "exo_pair":
            require_number("objective.label_smoothing", self.label_smoothing, above=0, below=0.5, usual="0.001")
        require_number("objective.gamma", self.gamma, at_least=0, usual="0.5")
        for name, types in (("label_smoothing", SMOOTHED), ("gamma", ("simpo",))):
            if getattr(self, name) and self.loss_type not in types:
                rule = f"0 with objective.loss_type={self.loss_type}, which does not use it"
                raise wrong(f"objective.{name}", rule, getattr(self, name), f"objective.{name}=0")

    @property
    def task(self) -> str:
        """Return the word of the task."""
        return direct_preference_facts(self.loss_type).task

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the names of the means over pairs."""
        return tuple(f"preference/{name}" for name in ("chosen_reward", "rejected_reward", "accuracy", "margin"))

    def __call__(self, model: LanguageModel, batch: Tensor | TokenBatch, /) -> ObjectiveSums:
        """Return the sums over the batch's pairs."""
        assert isinstance(batch, TokenBatch)
        inputs, targets, documents = training_tokens(batch)
        total: LossTotal = model(inputs, targets, LOG_PROBS, documents)
        num_tokens = (targets != LOG_PROBS.ignore_index).sum(dim=-1)
        if not direct_preference_facts(self.loss_type).scores_ahead:
            return self._of_pairs(total, total.objective, num_tokens)
        assert batch.reference is not None, "the data of a preference comes with its reference"
        return self._of_pairs(total, total.objective - batch.reference, num_tokens)

    def _of_pairs(self, total: LossTotal, scores: Tensor, num_tokens: Tensor) -> ObjectiveSums:
        """Return the sums over pairs, from log-probabilities [B] less a reference's, and answers' tokens [B]."""
        means = scores / num_tokens.clamp(min=1)
        loss = LOSSES[self.loss_type](*_pairs(means if self.loss_type in AVERAGED else scores), self)
        rewards = self.beta * (means if self.loss_type in ("simpo", "orpo") else scores)
        chosen, rejected = _pairs(rewards)
        margin, pairs = chosen - rejected, torch.ones_like(chosen)
        divisor = num_tokens[::2] if self.loss_type == "sft" else pairs
        sums = (divisor, pairs, chosen, rejected, (margin > 0).float(), margin)
        return ObjectiveSums(
            objective=loss.sum(),
            nats=loss.detach().sum(dtype=torch.float64),
            num_tokens=total.num_tokens,
            further=torch.stack([one.detach().sum(dtype=torch.float64) for one in sums]),
        )


def _pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values [P] of preferred answers, and of the others."""
    return values[::2], values[1::2]


def _smoothed(margin: Tensor, smoothing: float) -> Tensor:
    return -F.logsigmoid(margin) * (1 - smoothing) - F.logsigmoid(-margin) * smoothing


def _sigmoid(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    return _smoothed(given.beta * (chosen - rejected), given.label_smoothing)


def _hinge(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    return torch.relu(1 - given.beta * (chosen - rejected))


def _ipo(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """IPO (arXiv 2310.12036), eq. 17, of means over tokens, as TRL settled with its authors."""
    return (chosen - rejected - 1 / (2 * given.beta)) ** 2


def _robust(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """Robust DPO (arXiv 2403.00409): unbiased where the share `label_smoothing` of pairs is swapped."""
    margin, share = given.beta * (chosen - rejected), given.label_smoothing
    return (share * F.logsigmoid(-margin) - (1 - share) * F.logsigmoid(margin)) / (1 - 2 * share)


def _exo_pair(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """EXO (arXiv 2402.00856), eq. 16: the divergence of the model's preferences from the smoothed labels."""
    margin, share = given.beta * (chosen - rejected), torch.tensor(given.label_smoothing, device=chosen.device)
    right = margin.sigmoid() * (F.logsigmoid(margin) - torch.log1p(-share))
    return right + (-margin).sigmoid() * (F.logsigmoid(-margin) - share.log())


def _nca_pair(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """NCA (arXiv 2402.05369): also keeps the preferred answer from becoming unlikely."""
    chosen, rejected = given.beta * chosen, given.beta * rejected
    return -F.logsigmoid(chosen) - 0.5 * F.logsigmoid(-chosen) - 0.5 * F.logsigmoid(-rejected)


def _bco_pair(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """BCO (arXiv 2404.04656) without its moving shift of rewards, as TRL has it for pairs."""
    return -F.logsigmoid(given.beta * chosen) - F.logsigmoid(-given.beta * rejected)


def _sppo_hard(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """SPPO (arXiv 2405.00675), eq. 4.7, where the preferred answer wins with probability 1."""
    return (chosen - 0.5 / given.beta) ** 2 + (rejected + 0.5 / given.beta) ** 2


def _apo_zero(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """APO (arXiv 2408.06266), eq. 7: for preferred answers better than the model's."""
    return 1 - torch.sigmoid(given.beta * chosen) + torch.sigmoid(given.beta * rejected)


def _apo_down(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """APO, eq. 8: for preferred answers worse than the model's."""
    return torch.sigmoid(given.beta * chosen) + 1 - torch.sigmoid(given.beta * (chosen - rejected))


def _discopop(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """DiscoPOP (arXiv 2406.08414), eq. 5: logistic and exponential, blended by the margin."""
    margin = given.beta * (chosen - rejected)
    blend = torch.sigmoid(margin / DISCOPOP_TEMPERATURE)
    return -F.logsigmoid(margin) * (1 - blend) + torch.exp(-margin) * blend


def _sft(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """Negative log-likelihood of preferred answers; the mean is over their tokens."""
    del rejected, given
    return -chosen


def _simpo(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """SimPO (arXiv 2405.14734), eq. 6, with `gamma` a margin of rewards."""
    return _smoothed(given.beta * (chosen - rejected) - given.gamma, given.label_smoothing)


def _orpo(chosen: Tensor, rejected: Tensor, given: DirectPreference) -> Tensor:
    """ORPO (arXiv 2403.07691), eq. 6: each preferred answer's mean negative log-likelihood, and the odds ratio.

    TRL's likelihood is a mean over the micro-batch's tokens, prompts among them; this one does not depend on its size.
    """
    log_odds = [one - torch.log(-torch.expm1(one.clamp(max=-1e-6))) for one in (chosen, rejected)]
    return -chosen - given.beta * F.logsigmoid(log_odds[0] - log_odds[1])


LOSSES: Final[Mapping[str, Callable[[Tensor, Tensor, DirectPreference], Tensor]]] = {
    "sigmoid": _sigmoid,
    "sigmoid_norm": _sigmoid,
    "hinge": _hinge,
    "ipo": _ipo,
    "robust": _robust,
    "exo_pair": _exo_pair,
    "nca_pair": _nca_pair,
    "bco_pair": _bco_pair,
    "sppo_hard": _sppo_hard,
    "apo_zero": _apo_zero,
    "apo_down": _apo_down,
    "discopop": _discopop,
    "sft": _sft,
    "simpo": _simpo,
    "orpo": _orpo,
}
