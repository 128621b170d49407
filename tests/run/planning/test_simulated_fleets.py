"""The fleets of a command line: their batches, and the number of their ranks."""

import pytest

from lmtrain.run.planning import simulated
from lmtrain.run.planning.simulated import Simulation
from lmtrain.run.planning.simulated_fleets import simulated_fleets

WORDS = [
    "model=gpt2_124m",
    "model.num_layers=2",
    "model.num_heads=16",
    "cluster=h100_8x",
    "strategy=fsdp",
    "cluster.num_nodes=2",
]


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Simulation]:
    """Take the simulations down in the place of running them."""
    found: list[Simulation] = []
    monkeypatch.setattr(Simulation, "run", lambda one: found.append(one))
    return found


def batches(asked: list[Simulation]) -> list[tuple[str, int, int, int]]:
    """Return each simulation's strategy, ranks, sequences of a rank and tokens of a sequence."""
    batch = [(one.config.strategy.word, one.batch) for one in asked]
    return [(word, plan.num_ranks, plan.sequences_per_rank, plan.context_tokens) for word, plan in batch]


def test_every_device_has_a_sequence_of_the_models_length_on_any_number_of_ranks(asked: list[Simulation]) -> None:
    with pytest.raises(AttributeError):  # nothing was simulated to look up
        simulated_fleets(WORDS, ranks=[8, 64], strategies=["fsdp", "fsdp_tensor"])
    assert simulated.FEW_BLOCKS == (4, 5)
    assert batches(asked) == [
        ("fsdp", 8, 1, 1024),
        ("fsdp", 64, 1, 1024),
        ("fsdp_tensor", 8, 8, 1024),
        ("fsdp_tensor", 64, 8, 1024),
    ]
