import pytest

from lmtrain.composition.command_line.shell_lines import refuse_untyped_shell
from lmtrain.errors import ConfigurationError


def test_a_line_of_shell_is_typed() -> None:
    both = {"engine": {"setup": "module load python"}, "data": {"folder": {"engine": {"setup": "module load python"}}}}
    refuse_untyped_shell(both, ["+engine.setup=module load python"])
    refuse_untyped_shell({"engine": {"setup": None}}, [])
    with pytest.raises(ConfigurationError, match=r"data\.folder\.engine\.setup is a line of shell"):
        refuse_untyped_shell({"data": both["data"]}, ["seed=1"])
