import pytest

from lmtrain.accounting.training_plan.stages import TEXT_BYTES, text_bytes_per_token


@pytest.mark.parametrize(("entries", "expected"), [*TEXT_BYTES, (200_000, 4.86), (100, 1.0), (None, 4.64)])
def test_a_token_has_the_published_bytes_of_its_vocabulary(entries, expected):
    assert text_bytes_per_token(entries) == pytest.approx(expected)
