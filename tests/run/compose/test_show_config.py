import pytest
from omegaconf import OmegaConf

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.flags import Flags
from lmtrain.run.compose.show_config import show


def test_a_part_is_shown_and_an_unknown_one_refused(capsys: pytest.CaptureFixture[str]) -> None:
    composed = OmegaConf.create({"seed": 1, "run": {"root": "runs"}, "hydra": {"mode": None}})
    show(composed, Flags(show="job"))
    assert capsys.readouterr().out == "seed: 1\nrun:\n  root: runs\n\n"
    show(composed, Flags(show="job", package="run"))
    assert capsys.readouterr().out == "# @package run\nroot: runs\n\n"
    with pytest.raises(ConfigurationError, match="the config has no such part"):
        show(composed, Flags(show="job", package="runs"))
