import pytest

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.options.parts import ObjectiveFacts
from lmtrain.errors import ConfigurationError
from lmtrain.run.validators.objective import require_examples, require_objective
from tests.configs import config_of


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["init_from=null"],
            r"task=dpo learns beside the model that it starts from, .*; nearest valid: init_from=",
        ),
        (["packing=best_fit"], r"task=dpo takes each answer as a row; nearest valid: packing=document"),
        (["data=mixture"], r"data=mixture mixes rows, and task=dpo takes them in pairs"),
        (["strategy=diloco"], r"strategy=diloco does not; nearest valid: one of strategy=auto, ddp"),
        (
            ["strategy=context", "strategy.context_size=2"],
            r"scores whole sequences on each rank, and strategy=context does not",
        ),
    ],
)
def test_parts_unfit_for_pairs_are_refused(words, message) -> None:
    base = ["task=dpo", "source.paths=[x]", "init_from=x"]
    require_objective(config_of(*base))
    with pytest.raises(ConfigurationError, match=message):
        require_objective(config_of(*base, *words))


PAIRS = ObjectiveFacts(task="dpo", rows_together=2)


def test_a_micro_batch_holds_whole_pairs() -> None:
    settings = {"context_tokens": 8, "accumulation_micro_steps": 1, "num_ranks": 1}
    require_examples(BatchPlan(micro_batch_sequences=4, **settings), PAIRS)
    with pytest.raises(ConfigurationError, match=r"=3 parts pairs of answers; nearest valid: batch.tokens_per_step=32"):
        require_examples(BatchPlan(micro_batch_sequences=3, **settings), PAIRS)
    with pytest.raises(ConfigurationError, match=r"batch.micro_batch_sequences=3 parts pairs .* nearest valid: 2"):
        require_examples(BatchPlan(micro_batch_sequences=3, **{**settings, "accumulation_micro_steps": 2}), PAIRS)
