from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.storage.damage import one_line, told_as_damage


@pytest.mark.parametrize(
    "problem", [KeyError("a"), TypeError("a\nb"), OverflowError(), RecursionError("a"), EOFError()]
)
def test_an_error_of_values_is_one_line_about_the_file(problem: Exception) -> None:
    with (
        pytest.raises(DataError, match=r"^x/y is damaged \(.+\); make it anew\.$"),
        told_as_damage(Path("x/y"), fix="make it anew"),
    ):
        raise problem


def test_our_own_refusals_and_others_pass() -> None:
    with pytest.raises(ConfigurationError, match="own"), told_as_damage("x"):
        raise ConfigurationError("own")
    with pytest.raises(FileNotFoundError), told_as_damage("x"):
        raise FileNotFoundError
    assert one_line(EOFError()) == "EOFError"
