"""The settings of a search or a grid, in conf/train.yaml as `sweep`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, TRAIN_LOSS, VALIDATION_LOSS, averaged
from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.errors import ConfigurationError, suggest

KNOWN_METRICS: Final = (
    BITS_PER_BYTE,
    VALIDATION_LOSS,
    averaged(BITS_PER_BYTE),
    averaged(VALIDATION_LOSS),
    TRAIN_LOSS,
)


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of a search; lower values of `metric` are better.

    A trial is a choice of values, trained with `seeds` seeds in a row; the mean is its score. `parallel` runs train at
    once. `pruner` halving ends a trial that is not among the best 1/`halving_factor` at a validation, the first, the
    `halving_factor`-th and so on; https://arxiv.org/abs/1810.05934. `slurm` holds submitit's parameters.
    """

    sampler: Literal["tpe", "cmaes", "grid", "random"] = "tpe"
    trials: int | None = None
    seeds: int = 1
    metric: str = KNOWN_METRICS[0]
    pruner: Literal["none", "median", "halving"] = "none"
    halving_factor: int = 2
    warmup_trials: int = 5
    parallel: int = 1
    launcher: Literal["local", "slurm"] = "local"
    slurm: TypedAlone[Mapping[str, Any] | None] = None
    max_hours: float | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        least = {"trials": 1, "seeds": 1, "halving_factor": 2, "warmup_trials": 1, "parallel": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigurationError(f"sweep.{name}: must be at least {low}, got {value}.")
        if self.max_hours is not None and not 0 < self.max_hours < math.inf:
            raise ConfigurationError(f"sweep.max_hours: must be a positive number or null, got {self.max_hours}.")
        of_source = self.metric.startswith("validation/") and self.metric.endswith(("/bits_per_byte", "/loss"))
        if self.metric not in KNOWN_METRICS and not of_source:
            raise ConfigurationError(
                f"sweep.metric: must be one of {', '.join(KNOWN_METRICS)}, or validation/NAME/bits_per_byte of a "
                f"mixture, got {self.metric}.{suggest(self.metric, KNOWN_METRICS)}"
            )
        if self.slurm and self.launcher != "slurm":
            raise ConfigurationError("sweep.slurm needs sweep.launcher=slurm; set it, or leave sweep.slurm out.")

    @property
    def num_trials(self) -> int | None:
        """Return the number of trials, by default 20; None for a whole grid."""
        return self.trials or (None if self.sampler == "grid" else 20)
