import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.models.llama_settings import check_pattern, layer_windows


def test_no_window_lets_every_layer_see_all():
    assert layer_windows(3, window_tokens=None, pattern=None) == (None, None, None)


def test_a_window_without_a_pattern_is_of_every_layer():
    assert layer_windows(3, window_tokens=64, pattern=None) == (64, 64, 64)


def test_a_pattern_repeats_over_the_layers():
    assert layer_windows(6, window_tokens=64, pattern="SSSL") == (64, 64, 64, None, 64, 64)


@pytest.mark.parametrize(
    ("pattern", "nearest"), [("SSXL", "SSL"), ("sl", "SL"), ("", "SSSL"), ("full", "LL"), ("long", "L")]
)
def test_unknown_letters_are_refused_with_a_pattern_that_is_not(pattern, nearest):
    with pytest.raises(ConfigurationError, match=rf"model\.window_pattern='{pattern}' .* nearest valid: {nearest}\.$"):
        check_pattern(pattern)


def test_a_pattern_without_a_window_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"model\.window_pattern=SL has no effect without model\.window_tokens"
    ):
        layer_windows(2, window_tokens=None, pattern="SL")


def test_a_window_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match=r"model\.window_tokens=0 is below 1"):
        layer_windows(2, window_tokens=0, pattern=None)
