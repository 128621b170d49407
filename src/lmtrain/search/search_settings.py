"""How a search draws, repeats, judges and ends its trials: the `sweep` part of a command line."""

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
DRAWS_WITHOUT_RESULTS: Final = ("random", "grid")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of a search; lower values of `metric` are better.

    `trials` are choices of values, each trained with `seeds` seeds in a row; their mean is its score. `parallel` runs
    train at once. `halving_factor` is how many trials compete for a place in the next round of `pruner` halving.
    `slurm` are submitit's parameters for `launcher` slurm.
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
    max_usd: float | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        least = {"trials": 1, "seeds": 1, "halving_factor": 2, "warmup_trials": 1, "parallel": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigurationError(f"sweep.{name}={value} is below {low}; nearest valid: {low}.")
        for name in ("max_hours", "max_usd"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigurationError(f"sweep.{name}={value} is no finite amount above 0; null sets no limit.")
        _require_metric(self.metric)
        self._require_effects()

    @property
    def num_trials(self) -> int | None:
        """Return the number of trials asked for: 20 without a number; None of a grid, which is as large as it is."""
        return self.trials or (None if self.sampler == "grid" else 20)

    def _require_effects(self) -> None:
        """Refuse settings without an effect.

        Raises:
            ConfigurationError: There is one.
        """
        if self.pruner == "halving" and self.sampler not in DRAWS_WITHOUT_RESULTS:
            raise ConfigurationError(
                f"sweep.sampler={self.sampler} learns from finished trials, and sweep.pruner=halving draws all of them "
                "before the first has finished; nearest valid: sweep.sampler=random."
            )
        if self.slurm and self.launcher != "slurm":
            raise ConfigurationError("sweep.slurm is of sweep.launcher=slurm alone; add it, or leave sweep.slurm out.")


def _require_metric(metric: str) -> None:
    of_source = metric.startswith("validation/") and metric.endswith(("/bits_per_byte", "/loss"))
    if metric not in KNOWN_METRICS and not of_source:
        raise ConfigurationError(
            f"sweep.metric={metric} is no measure of a run that is better where it is lower; there are "
            f"{', '.join(KNOWN_METRICS)}, and validation/NAME/bits_per_byte of a mixture."
            f"{suggest(metric, KNOWN_METRICS)}"
        )
