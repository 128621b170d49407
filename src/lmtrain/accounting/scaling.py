"""A scaling rule's changes to a run's settings, by the keys of the command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

UNSCALED: Final = "lmtrain.run.scaling.unscaled"  # the rule without derived settings


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The rule's word and options, and the settings derived from its base's (None: there was none)."""

    rule: str
    options: Mapping[str, int | float | None]
    base: Mapping[str, int | float | None]
    derived: Mapping[str, int | float]

    @property
    def title(self) -> str:
        """Name the rule, with its options: `width_transfer (base_width=64)`."""
        options = ", ".join(f"{name}={value:g}" for name, value in self.options.items() if value is not None)
        return f"{self.rule} ({options})" if options else self.rule

    def rows(self) -> list[tuple[str, str]]:
        """Return each derived setting and its value, next to a different one of the base."""
        return [(key, self._value(key, value)) for key, value in self.derived.items()]

    def line(self) -> str:
        """Say it all in one line."""
        settings = ", ".join(f"{key}={value}" for key, value in self.rows()) or "nothing changes"
        return f"scaling={self.title}: {settings}"

    def _value(self, key: str, value: float) -> str:
        base, shown = self.base.get(key), _shown(value)
        return shown if base is None or _shown(base) == shown else f"{shown} (base {_shown(base)})"


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"
