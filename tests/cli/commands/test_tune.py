import pytest

from lmtrain.cli.commands.tune import tune
from lmtrain.errors import ConfigurationError


def test_what_it_finds_has_to_be_named(capsys):
    with pytest.raises(ConfigurationError, match=r"lmtrain tune bach: it finds lr or batch\..*'batch'"):
        tune(["bach"])
    assert tune([]) == 0
    assert "a range test" in capsys.readouterr().out
