import pytest

from lmtrain.run.planning.tried_words import with_words, words_of_devices
from tests.configs import config_of

CONFIG = config_of("cluster=h100_8x", "cluster.num_nodes=2", "strategy=ddp", "budget.tokens=10")


def test_an_option_is_chosen_without_the_settings_of_the_one_before():
    changed = with_words(CONFIG, ["strategy=fsdp", "recompute=every_block", "budget.tokens=5.87B"])
    assert changed.strategy.target == "lmtrain.parallel.fsdp.fsdp"
    assert changed.strategy.get("reshard_after_forward") is True, "as in its file"
    assert changed.recompute.target == "lmtrain.parallel.activation_checkpoint.every_block"
    assert changed.recompute.get("_partial_") is True
    assert (changed.budget.tokens, CONFIG.budget.tokens) == (5_870_000_000, 10)


def test_the_trainer_follows_the_cluster_unless_it_was_told_otherwise():
    assert with_words(CONFIG, ["cluster.num_nodes=20"]).num_ranks == 160
    told = CONFIG.changed(trainer={**CONFIG.values["trainer"], "num_nodes": 1})
    assert with_words(told, ["cluster.num_nodes=20"]).trainer.num_nodes == 1


@pytest.mark.parametrize(
    ("a_node", "num_devices", "words"),
    [
        (8, 160, ("cluster.num_nodes=20",)),
        (8, 4, ("cluster.devices_per_node=4", "cluster.num_nodes=1")),
        (1, 2, ("cluster.devices_per_node=2", "cluster.num_nodes=1")),
        (4, 16, ("cluster.num_nodes=4",)),
    ],
)
def test_devices_are_named_in_nodes_of_the_clusters_size(a_node, num_devices, words):
    config = config_of("cluster=h100_8x", "cluster.num_nodes=2", f"cluster.devices_per_node={a_node}")
    assert words_of_devices(config, num_devices) == words
    assert with_words(config, words).num_ranks == num_devices
