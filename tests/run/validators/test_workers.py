import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import RunConfig, read_config
from lmtrain.run.validators.workers import require_workers


def config(*words: str) -> RunConfig:
    return read_config(compose_config(["trainer.devices=2", *words]), allowed=[])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("weight_average=ema", "weight_average follows steps that are the same on every rank, .* weight_average=none"),
        ("spikes=skip", "spikes follows steps .* nearest valid: spikes=none"),
        ("optimizer=schedule_free", "evaluates other weights than it trains, .* nearest valid: one of optimizer=ada"),
        ("precision=bf16_true", "keeps weights of 2 bytes, .* nearest valid: one of precision=auto, bf16_mixed"),
    ],
)
def test_what_workers_cannot_do_is_refused_and_what_can_named(word: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_workers(config("strategy=diloco", word))
    require_workers(config("strategy=ddp", word))


@pytest.mark.parametrize("word", ["optimizer=adamw", "precision=bf16_mixed", "compile=none"])
def test_what_they_can_do_is_not(word: str) -> None:
    require_workers(config("strategy=diloco", word))
