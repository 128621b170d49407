"""An optimizer's facts: its state for plans, its valid numbers and combinations for rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from lmtrain.accounting.model.optimizer_state import OptimizerState
from lmtrain.accounting.options.ranges import RATE, Bounds
from lmtrain.accounting.scaling_laws.mup import Update

HIGHEST_RATE: Final = 10.0  # where a step changes each weight by the rate


@dataclass(frozen=True, kw_only=True)
class OptimizerFacts:
    """An optimizer's state and rules.

    `takes_shards` False needs whole parameters. `decay` is subtracted from weights times the learning rate
    ("decoupled"), or added to gradients. `update` is the size of a step, for carrying it over to other widths; None has
    no rule, for the reason `without_rule`. `ranges` are of its settings; `never_zero` names settings never 0, each
    with the loss. `averages_steps` takes the place of a decaying learning rate. `dials_depth`: its rates are the base
    of scaling=depth_dial. `usual_rates` bound the learning rates in use: a run with a higher one is warned.
    """

    group: ClassVar[str] = "optimizer"
    saying: ClassVar[str] = "what it keeps for a parameter"

    state: OptimizerState
    takes_shards: bool = True
    decay: Literal["decoupled", "gradient"] = "decoupled"
    update: Update | None = None
    without_rule: str = "its steps have no rule"
    ranges: Mapping[str, Bounds] = field(default_factory=dict[str, Bounds])
    never_zero: Mapping[str, str] = field(default_factory=dict[str, str])
    averages_steps: bool = False
    dials_depth: bool = False
    usual_rates: tuple[float, float] = (0.001, 0.5)

    @property
    def rate(self) -> Bounds:
        """Return the range of its learning rates, HIGHEST_RATE at most if a step changes each weight by the rate."""
        if self.update is None:
            return {**RATE, "usual": self.usual_words}
        usual = f"{self.usual_words}, as a step changes each weight by about the rate"
        return {"at_least": 0.0, "at_most": HIGHEST_RATE, "usual": usual}

    @property
    def usual_words(self) -> str:
        """Return the usual learning rates in words."""
        low, high = self.usual_rates
        return f"{low:g} to {high:g}".replace("e-0", "e-")
