from dataclasses import replace

import pytest

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.model.model_facts import DEPTHS, LinearBytes, ModelFacts, at_depth
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from tests.accounting.model.test_model_facts import FACTS

FIRST, OTHER = AttentionShape(8, 64, 512), AttentionShape(8, 64)


def facts(num_blocks: int) -> ModelFacts:
    """Return facts with 70 parameters and 10.25 bytes of a sequence in each block, all but the first one's window."""
    num = 1000 + 70 * num_blocks
    one, two = (round(n * (500 + 10.25 * num_blocks)) for n in (1, 2))
    return replace(
        FACTS,
        shape=ModelShape(num, 100, num - 100, num, (FIRST, *(OTHER,) * (num_blocks - 1))),
        components={"embedding": 100, "feed_forward": num - 100},
        parameters=TrainedParameters(
            num_total=num, num_hidden_matrix=num - 200, num_largest_block=70, num_outside_blocks=1000
        ),
        activations=LinearBytes(fixed=2 * one - two, per_sequence=two - one),
    )


@pytest.mark.parametrize("num_blocks", [9, 12, 14, 16, 17, 2001])
def test_two_depths_tell_of_any_other_to_the_byte(num_blocks: int) -> None:
    few, more = map(facts, DEPTHS)
    assert at_depth(few, more, num_blocks) == facts(num_blocks)
