import pytest

from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import RunConfig, read_config
from lmtrain.run.validators.tensor_group import require_parts

PAIR = ["strategy=tensor", "trainer.devices=2"]


def config(*words: str) -> RunConfig:
    return read_config(compose_config([*PAIR, *words]), allowed=[])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["loss=liger"], "loss=liger reads the whole vocabulary, and under strategy=tensor .* loss=chunked"),
        (["loss=linear"], "loss=linear reads the whole vocabulary"),
        (
            ["trainer.devices=8"],
            r"^strategy.tensor_size=8 does not divide model.num_heads=2 into parts; .* valid: 2\.$",
        ),
        (["model=mixtral_tiny"], "^model.experts cannot be cut over a tensor group; use strategy=fsdp"),
        (
            ["strategy=context", "model=llama_3_1_8b", "trainer.devices=16"],
            r"^strategy.context_size=16 does not divide model.num_kv_heads=8 over its ranks; nearest valid: 8\.$",
        ),
    ],
)
def test_what_a_tensor_group_cannot_do_is_refused_and_what_can_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_parts(config(*words))


def test_heads_of_a_model_without_a_setting_of_them_are_those_of_its_shape() -> None:
    shape = ModelShape(1, 1, 1, 1, attention=(AttentionShape(6, 128),))
    with pytest.raises(ConfigurationError, match=r"strategy.tensor_size=4 does not divide model.num_heads=6"):
        require_parts(config("model=nano", "trainer.devices=4"), shape)


@pytest.mark.parametrize("words", [[], ["loss=chunked"], ["compile=blocks"], ["strategy=fsdp", "loss=liger"]])
def test_what_it_can_do_is_not(words: list[str]) -> None:
    require_parts(config(*words))


@pytest.mark.parametrize(("strategy", "size"), [("tensor", "tensor_size"), ("context", "context_size")])
def test_a_step_divides_over_groups_and_a_sequence_within_one(strategy: str, size: str) -> None:
    words = (f"strategy={strategy}", "batch.tokens_per_step=128", "trainer.devices=4", f"strategy.{size}=2")
    batch = config("batch.context_tokens=64", *words)
    divided = batch.divided(batch.batch)
    assert (divided.num_data_ranks, divided.sequences_per_rank, divided.data_rank(3)) == (2, 1, 1)
    odd = config("batch.context_tokens=33", *words)
    with pytest.raises(ConfigurationError, match=rf"context_tokens=33 is not a multiple of strategy.{size}=2"):
        odd.divided(odd.batch)
