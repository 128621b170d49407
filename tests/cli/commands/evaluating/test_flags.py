import pytest

from lmtrain.cli.commands.evaluating.flags import evaluation_parser, is_anything_asked, require_flags
from lmtrain.errors import ConfigurationError

REFUSED = {
    ("--max-items", "3"): "--max-items is of --core FOLDER, --chat FOLDER or --lm-eval TASKS, which is not given",
    ("--max-items", "0", "--core", "f"): "--max-items 0 is below 1; nearest valid: 1",
    ("--num-shots", "-1", "--lm-eval", "a"): "--num-shots -1 is below 0; nearest valid: 0",
    ("--chat-template",): "--chat-template is of --lm-eval TASKS",
    ("--run-code", "--core", "f"): "--run-code is of --chat FOLDER",
    ("--num-new-tokens", "9"): "--num-new-tokens is of --answers",
    ("--core", "f", "--chat", "g", "--tasks", "a"): "both are given",
    ("--split", "test", "--made", "3"): "--split test is of --data FOLDER",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_flag_without_effect_is_refused(words):
    with pytest.raises(ConfigurationError, match=REFUSED[words]):
        require_flags(evaluation_parser("evaluate").parse_args(["run", *words]))


def test_flags_are_told_from_the_run_s_own_text():
    assert not is_anything_asked(evaluation_parser("evaluate").parse_args(["run", "--split", "test"]))
    assert is_anything_asked(evaluation_parser("evaluate").parse_args(["run", "--lm-eval", "a"]))
