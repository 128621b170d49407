from pathlib import Path

import pytest

from lmtrain.cli.commands.data import data
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "1"], r"nowhere must be a run, a checkpoint"),
        (["--step", "1", "--most", "0"], "--most 0 is below 1; nearest valid: 1"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_read(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        data(["show", str(tmp_path / "nowhere"), *words])
