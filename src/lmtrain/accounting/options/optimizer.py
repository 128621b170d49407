"""What an optimizer says of itself: to plans its state, to rules the company and the numbers that it takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lmtrain.accounting.model.optimizer_state import OptimizerState
from lmtrain.accounting.options.ranges import Range
from lmtrain.accounting.scaling_laws.width_transfer import Update


@dataclass(frozen=True, kw_only=True)
class OptimizerFacts:
    """An optimizer's state and rules.

    `takes_shards` False needs whole parameters. `decay` is subtracted from weights times the learning rate
    ("decoupled"), or added to gradients. `update` is the size of a step that carries over to other widths; None has no
    rule, for the reason `without_rule`. `ranges` are of settings that it alone has; `never_zero` names settings that
    cannot be 0, each with the loss. `averages_steps` takes the place of a decaying learning rate. `dials_depth`: its
    rates are those that scaling=depth_dial starts from.
    """

    group: ClassVar[str] = "optimizer"
    saying: ClassVar[str] = "what it keeps for a parameter"

    state: OptimizerState
    takes_shards: bool = True
    decay: Literal["decoupled", "gradient"] = "decoupled"
    update: Update | None = None
    without_rule: str = "there is no rule for its steps"
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    never_zero: Mapping[str, str] = field(default_factory=dict[str, str])
    averages_steps: bool = False
    dials_depth: bool = False
