"""A run's objective, where it is not the loss of next tokens, and the reference beside which it is learned."""

from collections.abc import Callable

import numpy as np

from lmtrain.composition.rules.objective import require_examples
from lmtrain.composition.run_config import RunConfig
from lmtrain.training.context import RunContext
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.module import CausalLMModule
from lmtrain.training.objectives.objective import Objective
from lmtrain.training.objectives.reference import ReferenceScores, ScoringRank


def objective_of(config: RunConfig) -> Objective | None:
    """Return the objective, None for the loss of next tokens."""
    return config.objective.build()


def reference_of(
    objective: Objective | None, *, start: str | None, datamodule: TokenDataModule, context: RunContext
) -> Callable[[CausalLMModule], object] | None:
    """Give the data its reference, and return the computing of it; `start` is the starting weights' fingerprint."""
    if objective is None:
        return None
    batch, horizon = context.plan.batch, context.plan.horizon
    require_examples(batch, rows_together=objective.rows_together)
    datamodule.rows_together = objective.rows_together
    rows, order = datamodule.rows_in_order()
    is_whole = horizon.seconds is not None or horizon.steps * batch.sequences_per_step >= rows.num_rows
    scores = ReferenceScores(
        rows,
        np.arange(rows.num_rows) if is_whole else order(np.arange(horizon.steps * batch.sequences_per_step)),
        folder=context.folder,
        key=f"{start}",
        rows_together=objective.rows_together,
        batch_rows=batch.micro_batch_sequences,
    )
    datamodule.references = scores

    def complete(module: CausalLMModule) -> None:
        place = ScoringRank(
            rank=batch.data_rank(module.trainer.global_rank),
            num_ranks=batch.num_data_ranks,
            device=module.trainer.strategy.root_device,
            forward_context=module.trainer.precision_plugin.forward_context(),
        )
        num_computed = scores.complete(module.language_model, place)
        if context.is_main_process and num_computed:
            print(
                f"reference: log-probabilities of {num_computed:,} answers by the starting model, in {scores.file}",
                flush=True,
            )

    return complete
