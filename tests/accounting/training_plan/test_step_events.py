"""Messages of a step, added up, and the repetition of its micro-steps."""

import pytest

from lmtrain.accounting.training_plan.simulated_step import Message


@pytest.mark.parametrize(("kind", "sent"), [("gather", 300), ("scatter", 75), ("reduce", 150)])
def test_a_ring_sends_its_share_of_the_input(kind, sent):
    assert Message(kind=kind, num_ranks=4, num_bytes=100).sent == sent
