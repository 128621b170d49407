"""What the precisions say, held to what torch's formats are."""

from tests import facts

WORDS = ("fp32", "tf32", "fp16_mixed", "bf16_mixed", "bf16_true", "fp8")


def test_steps_are_recorded_where_that_is_known_to_be_right() -> None:
    assert [word for word in WORDS if facts.precision(word).unrecordable] == ["fp16_mixed", "fp8"]
