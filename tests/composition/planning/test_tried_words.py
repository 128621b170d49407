import pytest

from lmtrain.composition.planning.tried_words import with_words, words_of_devices

CONFIG = {
    "cluster": {"devices_per_node": 8, "num_nodes": 2},
    "trainer": {"devices": 8, "num_nodes": 2},
    "strategy": {"_target_": "lmtrain.parallel.replicate.ddp", "timeout_seconds": 600},
    "recompute": {"_target_": "lmtrain.parallel.activation_checkpoint.none", "_partial_": True},
    "budget": {"tokens": 10},
}


def test_an_option_is_chosen_without_the_settings_of_the_one_before():
    changed = with_words(CONFIG, ["strategy=fsdp", "recompute=every_block", "budget.tokens=5.87B"])
    assert changed["strategy"] == {"_target_": "lmtrain.parallel.fsdp.fsdp"}
    assert changed["recompute"] == {"_target_": "lmtrain.parallel.activation_checkpoint.every_block", "_partial_": True}
    assert changed["budget"] == {"tokens": 5_870_000_000}
    assert CONFIG["budget"] == {"tokens": 10}


def test_the_trainer_follows_the_cluster_unless_it_was_told_otherwise():
    assert with_words(CONFIG, ["cluster.num_nodes=20"])["trainer"] == {"devices": 8, "num_nodes": 20}
    told = {**CONFIG, "trainer": {"devices": 8, "num_nodes": 1}}
    assert with_words(told, ["cluster.num_nodes=20"])["trainer"]["num_nodes"] == 1


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
    config = {
        "cluster": {"devices_per_node": a_node, "num_nodes": 2},
        "trainer": {"devices": a_node, "num_nodes": 2},
    }
    assert words_of_devices(config, num_devices) == words
    changed = with_words(config, words)["trainer"]
    assert changed["devices"] * changed["num_nodes"] == num_devices
