"""Messages of a step, added up, and the repetition of its micro-steps."""

import pytest

from lmtrain.accounting.training_plan.simulated_step import Kernel, Message, Wait, count_messages, repeated


@pytest.mark.parametrize(("kind", "sent"), [("gather", 300), ("scatter", 75), ("reduce", 150)])
def test_a_ring_sends_its_share_of_the_input(kind, sent):
    assert Message(kind=kind, num_ranks=4, num_bytes=100).sent == sent


def test_equal_messages_are_counted_together_by_group():
    gathers = [Message(kind="gather", num_ranks=4, num_bytes=10), Message(kind="gather", num_ranks=4, num_bytes=30)]
    apart = Message(kind="gather", num_ranks=4, num_bytes=7, stride=8)
    first, second = count_messages([*gathers, Wait("when used"), apart])
    assert (first.num_messages, first.num_bytes, first.sent_bytes) == (2, 40, 120)
    assert (second.stride, second.num_bytes) == (8, 7)


def test_the_first_micro_step_is_repeated_and_the_last_one_is_not():
    first, last, end = ([Kernel(flops=flops, num_bytes=1)] for flops in (1, 2, 3))
    events = repeated([first, last], end, num_micro_steps=4)
    assert [event.flops for event in events] == [1, 1, 1, 2, 3]
    assert repeated([last], end, num_micro_steps=1) == [*last, *end]
