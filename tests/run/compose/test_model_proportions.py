import pytest

from lmtrain.run.compose.model_proportions import feed_forward_at, width_line

KEPT = (
    "model.feed_forward_width=512 is 1.33 x model.width=384, where model=llama_tiny has 4 x; "
    "model.feed_forward_width=1536 keeps that"
)


@pytest.mark.parametrize(
    ("option", "found"), [("llama_tiny", 1536), ("llama_3_8b", 1344), ("gpt2_355m", None), ("no_such", None)]
)
def test_a_feed_forward_follows_its_model_s_own_proportion(option: str, found: int | None) -> None:
    assert feed_forward_at(option, 384) == found


@pytest.mark.parametrize(
    ("typed", "inner", "line"),
    [
        (["model.width=384"], 512, KEPT),
        (["model.width=384"], 1536, None),
        (["model.width=384", "model.feed_forward_width=512"], 512, None),
        (["seed=1"], 512, None),
    ],
)
def test_a_width_typed_alone_is_told_with_the_proportion_it_leaves(
    typed: list[str], inner: int, line: str | None
) -> None:
    assert width_line("llama_tiny", {"width": 384, "feed_forward_width": inner}, typed) == line
