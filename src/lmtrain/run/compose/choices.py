"""Hydra's facts about a composed config: its overrides, the chosen options, and its place in a sweep."""

from collections.abc import Sequence
from typing import Any

from lmtrain.run.compose.arguments import Arguments


class Choices:
    """The facts of one config; `brought` are a trial's overrides from its own `init_from`.

    `swept` are the trial's words, those that not all trials of its sweep have.
    """

    def __init__(self, state: Any, *, trial: Arguments | None = None) -> None:
        """Read the `hydra` node of a composed config."""
        self.overrides: list[str] = list(state.overrides.task)
        self.options: dict[str, str] = {name: str(option) for name, option in state.runtime.choices.items()}
        self.is_trial, self.brought = trial is not None, trial.imported if trial else []
        self.swept: list[str] = []

    @property
    def title(self) -> str:
        """Return the model and the trial's words."""
        model = self.options["model"]
        return ", ".join([model, *(word for word in self.swept if word != f"model={model}")])


def told_apart(trials: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return each trial's words, those that not all of them have."""
    shared = set[str]().union(*trials[:1]).intersection(*trials)
    return [[word for word in trial if word not in shared] for trial in trials]
