"""How large a model, on how many tokens, for an amount of compute; and the loss expected of each choice.

C = 6 N D and D = 20 N (arXiv 2203.15556) give N = sqrt(C / 120). The loss surface E + A / N^a + B / D^b is with the
constants of the replication (arXiv 2404.10102), a correction of the original's third fit. N are the parameters
active for a token: all of a dense model, of a mixture of experts all but the idle ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from lmtrain.accounting.quantities import format_quantity, format_ratio

TOKENS_PER_PARAMETER: Final = 20.0
# The smallest of the law's fit (abstract of arXiv 2203.15556); below it there is no prediction.
FEWEST_PARAMETERS: Final = 70e6
FEWEST_TOKENS: Final = 5e9


@dataclass(frozen=True, kw_only=True)
class LossSurface:
    """Constants of loss(N, D) = irreducible + per_parameters / N^a + per_tokens / D^b, in nats per token."""

    irreducible: float
    per_parameters: float
    per_tokens: float
    parameters_exponent: float
    tokens_exponent: float

    def loss(self, num_parameters: float, tokens: float) -> float:
        """Return the predicted loss; its differences mean more than its level, another data set's."""
        return (
            self.irreducible
            + self.per_parameters / num_parameters**self.parameters_exponent
            + self.per_tokens / tokens**self.tokens_exponent
        )


REPLICATION: Final = LossSurface(
    irreducible=1.8172,
    per_parameters=482.01,
    per_tokens=2085.43,
    parameters_exponent=0.3478,
    tokens_exponent=0.3658,
)


def compute_optimum(flops: float) -> tuple[float, float]:
    """Return the parameters and tokens for `flops` = 6 N D in the optimum's ratio of D to N."""
    num_parameters = math.sqrt(flops / (6 * TOKENS_PER_PARAMETER))
    return num_parameters, TOKENS_PER_PARAMETER * num_parameters


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """One way to spend the same compute: a smaller model on more tokens, or the reverse.

    `predicted_loss` is None below the models and tokens of the law's fit.
    """

    num_parameters: float
    tokens: float
    tokens_per_parameter: float
    predicted_loss: float | None

    @property
    def outside(self) -> str:
        """Name the amounts below the law's fit; "" without any."""
        amounts = (
            ("parameters", self.num_parameters, FEWEST_PARAMETERS),
            ("tokens", self.tokens, FEWEST_TOKENS),
        )
        few = [name for name, amount, fewest in amounts if amount < fewest]
        return f"too few {' and '.join(few)}" if few else ""


def trade_off_lines(choices: Sequence[TradeOff]) -> list[str]:
    """Write choices for a page, each with its predicted loss in nats, or why there is none."""
    lines: list[str] = []
    for each in choices:
        size = f"{format_quantity(each.num_parameters)} on {format_quantity(each.tokens)}"
        loss = f"{each.outside} for a predicted loss"
        if each.predicted_loss is not None:
            loss = f"loss {each.predicted_loss:.3f}"
        lines.append(f"{size}: {format_ratio(each.tokens_per_parameter)} per parameter, {loss}")
    return lines


def ratio_words(tokens: float, *, num_parameters: float, num_active_parameters: float) -> str:
    """Write the tokens for each parameter active for one of them, compared with the optimum's."""
    kind = "" if num_active_parameters == num_parameters else "active "
    ratio = format_ratio(tokens / num_active_parameters)
    return f"{ratio} per {kind}parameter ({TOKENS_PER_PARAMETER:g} is compute-optimal)"


def trade_off(flops: float, *, factors: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)) -> tuple[TradeOff, ...]:
    """Return models of `factors` times the optimum's size, each on its remaining tokens."""
    num_parameters, _ = compute_optimum(flops)
    return tuple(_spend(flops, num_parameters * factor) for factor in factors)


def _spend(flops: float, num_parameters: float) -> TradeOff:
    tokens = flops / (6 * num_parameters)
    spent = TradeOff(
        num_parameters=num_parameters, tokens=tokens, tokens_per_parameter=tokens / num_parameters, predicted_loss=None
    )
    return spent if spent.outside else replace(spent, predicted_loss=REPLICATION.loss(num_parameters, tokens))
