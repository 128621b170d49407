import pytest

from lmtrain.composition.rules.ranks import require_ranks
from lmtrain.errors import ConfigurationError
from tests.configs import config_of


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["strategy=single", "trainer.devices=2"], r"=single trains on 1 rank, not 2 .*use one of strategy=auto, "),
        (["strategy=tensor", "strategy.tensor_size=3", "trainer.devices=4"], "strategy.tensor_size=3"),
    ],
)
def test_more_ranks_than_a_strategy_takes_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_ranks(config_of(*words))


@pytest.mark.parametrize("seconds", ["0", "-5", "1e9", "inf", "nan"])
def test_a_wait_without_an_end_is_refused(seconds: str) -> None:
    with pytest.raises(ConfigurationError, match=r"strategy\.timeout_seconds=.* is not .*; 600 is usual"):
        require_ranks(config_of("strategy=fsdp", "trainer.devices=2", f"strategy.timeout_seconds={seconds}"))


@pytest.mark.parametrize("words", [["strategy=single"], ["strategy=ddp", "trainer.devices=4"]])
def test_other_numbers_pass(words: list[str]) -> None:
    require_ranks(config_of(*words))
