import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.models.dimensions import check_context, check_multiple, check_positive


def test_multiple_names_both_neighbours():
    with pytest.raises(ConfigurationError) as refusal:
        check_multiple("width", 130, "num_heads", 4)
    assert str(refusal.value) == ("model.width=130 is not a multiple of model.num_heads=4; nearest valid: 128 or 132.")


def test_zero_is_never_suggested():
    with pytest.raises(ConfigurationError, match=r"nearest valid: 4\.$"):
        check_multiple("width", 3, "num_heads", 4)


def test_what_divides_and_fits_passes():
    check_multiple("width", 128, "num_heads", 4)
    check_positive(width=1)
    check_context(8, 8)


def test_zero_layers_are_refused():
    with pytest.raises(ConfigurationError, match=r"model\.num_layers=0 is below 1"):
        check_positive(width=1, num_layers=0)


def test_context_over_the_limit_names_both_keys():
    with pytest.raises(ConfigurationError, match=r"batch\.context_tokens=9 is over model\.max_context_tokens=8"):
        check_context(9, 8)
