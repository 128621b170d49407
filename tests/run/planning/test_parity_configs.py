import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.planning import parity_configs
from lmtrain.run.planning.parity_configs import pair_of
from tests import tiny
from tests.configs import config_of

RANKS = ["trainer.devices=2", "trainer.num_nodes=1", "strategy=fsdp", "tokenizer=byte_level", "logger=none"]


def test_one_process_takes_the_same_micro_batches_eagerly_and_nothing_small_is_changed() -> None:
    config = config_of(*tiny.TINY, *RANKS, "recompute=every_block", "optimizer=adamw", "optimizer.eps=1e-3")
    pair = pair_of(config, num_steps=2)
    assert pair.changed == ()
    assert (pair.together.num_ranks, pair.alone.num_ranks) == (2, 1)
    assert (pair.together.recompute.word, pair.alone.recompute.word) == ("every_block", "none")
    together, alone = (one.divided(one.batch) for one in (pair.together, pair.alone))
    assert (together.sequences_per_micro_step, alone.sequences_per_micro_step) == (4, 4)
    assert together.tokens_per_step == alone.tokens_per_step


def test_experts_balanced_over_all_ranks_are_compared_by_a_step_in_one_micro_batch() -> None:
    words = ["data=synthetic", "batch.context_tokens=32", "batch.tokens_per_step=256", "batch.micro_batch_sequences=2"]
    pair = pair_of(config_of("model=mixtral_tiny", *words, *RANKS), num_steps=2)
    together, alone = (one.divided(one.batch) for one in (pair.together, pair.alone))
    assert (together.sequences_per_micro_step, alone.sequences_per_micro_step) == (4, 8)
    assert pair.changed == ("batch.micro_batch_sequences=4",)


def test_a_model_too_large_for_the_machine_is_made_smaller_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_configs, "available_bytes", lambda: 80_000_000_000)
    step = ["batch.context_tokens=128", "batch.tokens_per_step=1048576", "batch.micro_batch_sequences=2"]
    asked = config_of("model=llama_3_2_1b", *RANKS, "tokenizer.vocab_size=512", "optimizer=adamw", *step)
    pair = pair_of(asked, num_steps=3)
    assert {"model.num_layers=2", "model.vocab_size=512", "batch.micro_batch_sequences=1"} <= {*pair.changed}
    assert pair.together.divided(pair.together.batch).accumulation_micro_steps == 2, "it still accumulates"
    monkeypatch.setattr(parity_configs, "available_bytes", lambda: 1_000_000)
    with pytest.raises(EnvironmentProblem, match=r"parity: the model takes .* model.width"):
        pair_of(asked, num_steps=3)


def test_strategies_that_cannot_be_compared_are_refused() -> None:
    auto = config_of(*tiny.TINY, "trainer.devices=2", "cluster=h100_8x", "trainer.num_nodes=1")
    for config in (auto, config_of(*tiny.TINY, *RANKS, "strategy=diloco")):
        with pytest.raises(
            ConfigurationError, match=r"strategy=.* cannot be compared .* one of strategy=context, ddp, "
        ):
            pair_of(config, num_steps=2)
