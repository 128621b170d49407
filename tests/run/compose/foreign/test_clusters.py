import pytest

from lmtrain.run.compose.foreign.clusters import devices_of_all_nodes, devices_of_some, on_cluster
from lmtrain.run.compose.foreign.table import Equivalent


@pytest.mark.parametrize(
    ("word", "typed", "found"),
    [
        ("trainer.devices=16", ["cluster=h100_8x"], ("cluster.num_nodes=2",)),
        ("trainer.devices=12", ["cluster=h100_8x"], ("cluster.devices_per_node=12",)),
        ("trainer.devices=4", ["--cluster", "h100_8x"], ("cluster.devices_per_node=4",)),
        ("trainer.devices=4", ["cluster=h200_1x"], ("cluster.devices_per_node=4",)),
        ("trainer.devices=8", ["cluster=h100_8x"], ()),
        ("trainer.num_nodes=2", ["cluster=h100_8x"], ("cluster.num_nodes=2",)),
        ("seed=2", ["cluster=h100_8x"], ("seed=2",)),
        ("trainer.devices=16", ["cluster=none_such"], ("trainer.devices=16",)),
        ("trainer.devices=16", [], ("trainer.devices=16",)),
    ],
)
def test_numbers_of_devices_are_a_named_cluster_s(word: str, typed: list[str], found: tuple[str, ...]) -> None:
    assert on_cluster(Equivalent((word,)), typed).words == found


@pytest.mark.parametrize(("number", "implied"), [(4, ()), (16, ("cluster.num_nodes=2",))])
def test_devices_that_a_strategy_wants_are_left_out_where_a_node_has_them(number, implied) -> None:
    wanted = Equivalent(("strategy=tensor",), implied=(f"trainer.devices={number}",))
    assert on_cluster(wanted, ["cluster=h100_8x"]).implied == implied


@pytest.mark.parametrize(
    ("count", "value", "typed", "devices"),
    [
        (devices_of_all_nodes, "8", {}, 8),
        (devices_of_all_nodes, "8", {"nnodes": "2"}, 4),
        (devices_of_some, "8", {}, 8),
        (devices_of_some, "8", {"nodes": "2"}, 8),
        (devices_of_some, "16", {"nodes": "2", "cluster": "h100_8x"}, 8),
        (devices_of_some, "4", {"nodes": "2", "cluster": "h100_8x"}, 4),
        (devices_of_some, "0,1", {}, 2),
    ],
)
def test_devices_are_of_a_node_or_of_all_by_program(count, value, typed, devices) -> None:
    assert count(value, typed).words == (f"trainer.devices={devices}",)
