import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.validators.ranks import require_launcher, require_nodes_enough, require_ranks
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


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("trainer.devices=16", "cluster.num_nodes=2"),
        ("trainer.devices=12", "cluster.devices_per_node=12"),
        ("trainer.num_nodes=2", "cluster.num_nodes=2"),
    ],
)
def test_more_than_a_named_cluster_has_is_refused_and_a_part_of_it_passes(word: str, nearest: str) -> None:
    with pytest.raises(ConfigurationError, match=f"nearest valid: {nearest} without {word.partition('=')[0]}"):
        require_nodes_enough(config_of("cluster=h100_8x", word))
    for words in (["cluster=h100_8x", "trainer.devices=4"], ["trainer.devices=2"]):
        require_nodes_enough(config_of(*words))


def test_several_nodes_need_a_launcher_and_the_message_has_the_command() -> None:
    several = config_of("trainer.num_nodes=4", "trainer.devices=8").trainer
    with pytest.raises(ConfigurationError, match=r"num_nodes=4 needs.*torchrun --nnodes=4 --nproc-per-node=8.*srun"):
        require_launcher(several, is_launched=False)
    require_launcher(several, is_launched=True)
    require_launcher(config_of().trainer, is_launched=False)
