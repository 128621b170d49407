"""When a micro-batch ends an optimizer step."""

import lightning.pytorch as pl


def is_step_end(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Return, in `on_train_batch_end`, whether this micro-batch (from 0) completed an optimizer step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0
