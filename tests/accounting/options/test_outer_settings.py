import pytest

from lmtrain.accounting.options.outer_settings import require_outer, require_turns
from lmtrain.errors import ConfigurationError


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
        (0.0, 0.9, "outer_lr must be above 0 and at most 2, got 0"),
        (2.5, 0.9, "outer_lr must .*, got 2.5"),
        (0.7, 1.0, "outer_momentum must be at least 0 and below 1, got 1"),
    ],
)
def test_an_outer_step_that_stands_still_or_diverges_is_refused(lr, momentum, words):
    with pytest.raises(ConfigurationError, match=f"strategy.{words}"):
        require_outer(lr, momentum)
    require_outer(1.0, 0.0)
