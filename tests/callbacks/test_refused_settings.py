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
    ("Checkpoint", {"keep_last": 0}, r"checkpoint\.keep_last.*1"),
    ("Checkpoint", {"background_from_bytes": -1}, r"checkpoint\.background_from_bytes.*0"),
    ("Communication", {"every_steps": 0}, r"communication\.every_steps.*1"),
    ("Divergence", {"most_rise": 1.0}, r"divergence\.most_rise.*above 1"),
    ("Divergence", {"mean_steps": 0}, r"divergence\.mean_steps.*1"),
    ("EarlyStopping", {"patience": 0}, r"early_stopping\.patience.*1"),
    ("EarlyStopping", {"min_delta": float("nan")}, r"early_stopping\.min_delta.*at least 0"),
    ("EvaluateAside", {"every_steps": 1, "most_waiting": 0}, r"evaluate_aside\.most_waiting.*1"),
    ("Heartbeat", {"every_seconds": 0}, r"heartbeat\.every_seconds.*above 0"),
    ("Heartbeat", {"report_after_seconds": 3}, r"heartbeat\.report_after_seconds.*10"),
    ("Progress", {"every_seconds": -1}, r"progress\.every_seconds.*0"),
    ("Push", {"repository": "a", "every_minutes": 1}, r"push\.repository.*OWNER/NAME"),
    ("Push", {"repository": "a/b", "every_minutes": 0}, r"push\.every_minutes.*above 0"),
    ("StepLog", {"every_steps": 0}, r"step_log\.every_steps.*1"),
    ("SystemMetrics", {"every_seconds": 0}, r"system_metrics\.every_seconds.*above 0"),
    ("TextSamples", {"num_new_tokens": 0}, r"text_samples\.num_new_tokens.*1"),
    ("TokenBudget", {"tokens": 0}, r"token_budget\.tokens.*1"),
    ("TimeBudget", {"seconds": 0}, r"time_budget\.seconds.*above 0"),
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
