import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.flags import Flags, parse_flags


def test_flags_are_read_in_both_spellings() -> None:
    assert parse_flags(["-m"]) == parse_flags(["--multirun"]) == Flags(is_sweep=True)
    wanted = Flags(show="job", package="budget", resolve=True)
    assert parse_flags(["--cfg", "job", "--resolve", "-p", "budget"]) == wanted
    assert parse_flags(["--cfg=job", "--resolve", "--package=budget"]) == wanted
    assert parse_flags(["--config-dir", "mine"]).config_dir == "mine"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--info"], "--cfg job"),
        (["--version"], "lmtrain --version prints it"),
        (["--config-name", "x"], "experiment=NAME"),
        (["--experimental-rerun", "x.pickle"], "the same command again"),
        (["--cfg", "jobs"], "job"),
        (["--lr", "1e-3"], "--lr"),
        (["-m", "--cfg", "job"], "Only one of"),
        (["-p", "gpu"], "--package gpu (-p) has no effect"),
        (["--resolve"], "--resolve has no effect without --cfg job"),
        (["--hydra-help"], "--hydra-help: there is no such flag. `lmtrain train --help`"),
        (["--partition=gpu"], "--partition=gpu: there is no such flag. `lmtrain train --help`"),  # no near one
    ],
)
def test_other_flags_are_refused_with_what_to_type(words: list[str], part: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_flags(words)
    assert part in str(refused.value)
