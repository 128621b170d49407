"""Callbacks for a run of lmtrain and for anybody's `lightning.Trainer(callbacks=[...])`, one per file.

Outside a run they need no plan, no config and no folder; they log by the Trainer's loggers and `callback_metrics`:

    trainer = lightning.Trainer(callbacks=[lmtrain.callbacks.Throughput(), lmtrain.callbacks.TokenBudget(tokens=10**7)])

`Validation` then needs batches and a tokenizer, `TextSamples` a tokenizer. `EvaluateAside`, `Push` and `RunManifest`
work with a run's folder and belong to a run.
"""

from importlib import import_module
from typing import Any, Final

_MODULES: Final = {
    "Checkpoint": "checkpoint",
    "Communication": "communication",
    "Divergence": "divergence",
    "EarlyStopping": "early_stopping",
    "EvaluateAside": "evaluate_aside",
    "GracefulStop": "graceful_stop",
    "Heartbeat": "heartbeat",
    "Ledger": "ledger",
    "Progress": "progress",
    "Push": "push",
    "RunManifest": "run_manifest",
    "SilentCorruption": "silent_corruption",
    "StepLog": "step_log",
    "SystemMetrics": "system_metrics",
    "TextSamples": "text_samples",
    "Throughput": "throughput",
    "TimeBudget": "time_budget",
    "TokenBudget": "token_budget",
    "TrainingHealth": "training_health",
    "Validation": "validation",
}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a callback at its first use: Lightning takes seconds."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
