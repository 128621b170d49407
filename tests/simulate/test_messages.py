"""Messages read from operators: their group, and the way they are waited for. Real ranks: test_rank_step.py."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from lmtrain.simulate.live_memory import Operations
from lmtrain.simulate.rank_step import fake_ranks
from lmtrain.simulate.recorder import read_message, tensors_sent


class Read(Operations):
    """Keeps the messages of all operators, and the number of their tensors."""

    def __init__(self, phase):
        super().__init__()
        self.phase, self.found, self.num_tensors = phase, [], []

    def take(self, func, arguments, named, made):
        every = [*arguments, *named.values()]
        message = read_message(func, every, phase=self.phase, of_weights=self.phase == "forward")
        if message:
            self.found.append(message)
            self.num_tensors.append(len(tensors_sent(func, every)))


@pytest.mark.parametrize(
    ("phase", "gather", "reduction"),
    [("forward", "when used", "at once"), ("backward", "at the end", "at the end"), ("step", "at once", "at once")],
)
def test_weights_are_awaited_at_use_and_gradients_at_the_end(phase, gather, reduction):
    one, four = torch.zeros(8), [torch.zeros(8) for _ in range(4)]
    with fake_ranks(4), Read(phase) as read:
        dist.all_gather(four, one)
        dist.all_reduce(one)
    assert [(each.kind, each.num_bytes, each.num_ranks) for each in read.found] == [
        ("gather", 32, 4),
        ("reduce", 32, 4),
    ]
    assert [each.awaited for each in read.found] == [gather, reduction]
    assert read.num_tensors == [1, 1]


def test_a_functional_operator_names_its_group_and_is_awaited_at_once():
    with fake_ranks(8), Read("backward") as read:
        group = dist.new_group([0, 2, 4, 6])
        functional.wait_tensor(functional.all_reduce(torch.zeros(2), "sum", group))
    assert [(each.num_ranks, each.stride, each.awaited) for each in read.found] == [(4, 2, "at once")]
