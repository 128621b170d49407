import pytest

from lmtrain.accounting.options.outer_settings import delta_bytes, require_outer, require_turns
from lmtrain.errors import ConfigurationError


def test_a_delta_takes_the_bytes_of_its_format():
    assert [delta_bytes(each) for each in ("fp32", "bf16")] == [4, 2]
    with pytest.raises(ConfigurationError, match=r"strategy.delta=int2 must be one of fp32, bf16"):
        delta_bytes("int2")


@pytest.mark.parametrize(("steps", "fragments", "nearest"), [(10, 4, 8), (3, 8, 8), (7, 2, 8), (30, 4, 32)])
def test_fragments_that_cannot_meet_in_turns_are_refused_with_steps_that_let_them(steps, fragments, nearest):
    with pytest.raises(
        ConfigurationError, match=rf"num_fragments={fragments}, which .* strategy.every_steps={nearest}\?"
    ):
        require_turns(steps, fragments)
    require_turns(nearest, fragments)


@pytest.mark.parametrize(
    ("lr", "momentum", "words"),
    [
        (0.0, 0.9, "outer_lr=0 is not above 0 and at most 2"),
        (2.5, 0.9, "outer_lr=2.5 is not"),
        (0.7, 1.0, "outer_momentum=1 is not at least 0 and below 1"),
    ],
)
def test_an_outer_step_that_stands_still_or_diverges_is_refused(lr, momentum, words):
    with pytest.raises(ConfigurationError, match=f"strategy.{words}"):
        require_outer(lr, momentum)
    require_outer(1.0, 0.0)
