from lmtrain.report.kept_flags import kept_flags
from lmtrain.run.compose.arguments import parse_arguments


def test_the_flags_of_a_command_are_read_back_as_they_were_typed() -> None:
    words = kept_flags(config_dir="my options", allowed=["my_package.", "x."])
    read = parse_arguments(["seed=1", *words])
    assert (read.config_dir, read.allowed_targets) == ("my options", ["my_package.", "x."])
    assert kept_flags(config_dir=read.config_dir, allowed=read.allowed_targets) == words
    assert kept_flags(config_dir=None, allowed=()) == []
