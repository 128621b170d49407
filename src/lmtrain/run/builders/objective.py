"""A run's objective, where it is not the loss of next tokens, and its needs: a writer, a reference, whole examples."""

from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np

from lmtrain.accounting.options.parts import ObjectiveFacts
from lmtrain.accounting.quantities import format_count
from lmtrain.data.shards import Dataset
from lmtrain.errors import DataError
from lmtrain.inference.cache import CachedAttention
from lmtrain.models.attention.base import Attention
from lmtrain.models.base import LanguageModel
from lmtrain.rollouts.answer_writer import SampledAnswers
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.task import objective_facts, require_examples
from lmtrain.training.context import RunContext
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.module import CausalLMModule
from lmtrain.training.objectives.distill import Distillation
from lmtrain.training.objectives.grpo import GroupRelativePolicy
from lmtrain.training.objectives.objective import Objective
from lmtrain.training.objectives.reference import ReferenceScores, ScoringRank, require_pairs
from lmtrain.training.token_batch import TokenBatch, to_batch
from lmtrain.training.training_batches import Examples, positions_of_steps


def objective_of(config: RunConfig, context: RunContext) -> Objective | None:
    """Return the objective with the run's writer of answers, where it takes one; None for the loss of next tokens."""
    objective: Objective | None = config.objective.build()
    facts = objective_facts(config)
    if facts is not None and facts.num_new_tokens:
        make = partial(SampledAnswers, tokenizer=context.tokenizer, events=context.events)
        cast(GroupRelativePolicy, objective).write_with(make)
    return objective


def attention_for(config: RunConfig, kernel: Attention | None) -> Attention | None:
    """Return the run's kernel, able to go on from a cache where the objective writes."""
    facts = objective_facts(config)
    return CachedAttention(kernel) if kernel is not None and facts is not None and facts.num_new_tokens else kernel


def before_training(
    config: RunConfig,
    objective: Objective | None,
    *,
    datamodule: TokenDataModule,
    context: RunContext,
    teacher: LanguageModel | None = None,
) -> Callable[[CausalLMModule], object] | None:
    """Let the data keep examples together, and return the work with the starting weights or the `teacher`."""
    facts = objective_facts(config)
    if objective is None or facts is None:
        return None
    if teacher is not None:
        distillation = cast(Distillation, objective)
        return lambda module: distillation.take_teacher(teacher.to(module.trainer.strategy.root_device))
    require_examples(context.plan.batch, facts)
    _require_marks(datamodule.dataset, facts)
    datamodule.examples = Examples(rows_together=facts.rows_together, copies=facts.copies, num_uses=facts.num_uses)
    if facts.rows_together > 1:
        first = np.arange(facts.rows_together)
        read = to_batch(datamodule.rows_in_order()[0].read(first))
        require_pairs(cast(TokenBatch, read), first, rows_together=facts.rows_together)
    if facts.scores_ahead:
        return reference_of(facts, datamodule=datamodule, context=context)
    if facts.keeps_start:
        return lambda module: cast(GroupRelativePolicy, objective).keep_start(module.language_model)
    return None


def _require_marks(dataset: Dataset, facts: ObjectiveFacts) -> None:
    """Refuse prepared text: without marks of the assistant's words it has neither questions nor answers."""
    if not dataset.split("train").has_loss_mask:
        source = "preference_pairs" if facts.rows_together > 1 else "made_conversations"
        raise DataError(
            f"{dataset.folder} is text, without marks of the assistant's words, and task={facts.task} takes them for "
            f"answers. Did you mean source={source}, or the folder of prepared conversations?"
        )


def reference_of(
    facts: ObjectiveFacts, *, datamodule: TokenDataModule, context: RunContext
) -> Callable[[CausalLMModule], object]:
    """Give the data its reference, and return the computing of it."""
    batch, horizon = context.plan.batch, context.plan.horizon
    rows, order = datamodule.rows_in_order()
    num_sequences = batch.sequences_per_step
    is_whole = horizon.seconds is not None or horizon.steps * num_sequences >= rows.num_rows
    scores = ReferenceScores(
        rows,
        np.arange(rows.num_rows)
        if is_whole
        else order(positions_of_steps(batch, range(horizon.steps), np.arange(num_sequences))),
        folder=context.folder,
        key=f"{context.identity['init_from']}",  # the starting weights
        rows_together=facts.rows_together,
        batch_rows=batch.sequences_per_micro_step,
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
            answers = format_count(num_computed, "answer")
            print(f"reference: log-probabilities of {answers} by the starting model, in {scores.file}", flush=True)

    return complete
