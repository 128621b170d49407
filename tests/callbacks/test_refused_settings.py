"""Settings that cannot be: refused with their key and the rule."""

from collections.abc import Callable
from typing import Any

import pytest

from lmtrain import callbacks
from lmtrain.errors import ConfigurationError, DataError
from tests.callbacks.tiny_run import TinyRun

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Checkpoint", {"every_steps": 0}, r"checkpoint\.every_steps.*1"),
    ("Checkpoint", {"every_seconds": 0.0}, r"checkpoint\.every_seconds.*above 0"),
    ("Checkpoint", {"max_time_share": 2.0}, r"checkpoint\.max_time_share.*at most 1"),
    ("Divergence", {"most_rise": 1.0}, r"divergence\.most_rise.*above 1"),
    ("EarlyStopping", {"patience": 0}, r"early_stopping\.patience.*1"),
    ("EarlyStopping", {"min_delta": float("nan")}, r"early_stopping\.min_delta.*at least 0"),
    ("EvaluateAside", {"every_steps": 1, "most_waiting": 0}, r"evaluate_aside\.most_waiting.*1"),
    ("Heartbeat", {"report_after_seconds": 3}, r"heartbeat\.report_after_seconds.*10"),
    ("Push", {"repository": "a", "every_minutes": 1}, r"push\.repository.*OWNER/NAME"),
    ("Validation", {"num_passes": 1, "every_steps": 1}, r"every_steps"),
    ("Validation", {"max_tokens": 1}, r"validation\.max_tokens.*2"),
    ("Validation", {"split": "validatoin"}, r"validation"),
]


@pytest.mark.parametrize(("name", "settings", "pattern"), REFUSED)
def test_settings_are_refused(
    name: str, settings: dict[str, Any], pattern: str, make_run: Callable[..., TinyRun]
) -> None:
    with pytest.raises((ConfigurationError, DataError), match=pattern):
        getattr(callbacks, name)(**settings, context=make_run().context)


def test_changed_accumulation_is_refused(make_run: Callable[..., TinyRun]) -> None:
    run = make_run()

    class Doubles(callbacks.StepLog):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_start(trainer, pl_module)
            trainer.accumulate_grad_batches = 4

    with pytest.raises(ConfigurationError, match=r"accumulate_grad_batches must be 1.*batch\.tokens_per_step"):
        run.fit(Doubles(every_steps=1, context=run.context), callbacks.TokenBudget(context=run.context))
