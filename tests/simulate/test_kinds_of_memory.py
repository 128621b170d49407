"""Storages by kind, to the end of their last reference."""

import torch

from lmtrain.simulate.live_memory import KindsOfMemory


def test_a_storage_counts_once_under_its_first_kind_until_it_is_told_otherwise():
    memory, tensor = KindsOfMemory(), torch.zeros(100)
    memory.hold([tensor, tensor[:10]], "activations")
    memory.hold([tensor], "workspace")
    assert memory.now()["activations"] == 400
    memory.hold([tensor.view(10, 10)], "gradients", again=True)
    assert (memory.now()["activations"], memory.now()["gradients"]) == (0, 400)
    del tensor
    assert sum(memory.now().values()) == 0


def test_gathered_weights_are_looked_at_anew_as_they_are_emptied_and_filled_in_place():
    memory, tensor = KindsOfMemory(), torch.zeros(100)
    memory.hold([tensor], "gathered weights")
    tensor.untyped_storage().resize_(0)
    assert memory.now()["gathered weights"] == 0
    tensor.untyped_storage().resize_(800)
    assert memory.now()["gathered weights"] == 800
