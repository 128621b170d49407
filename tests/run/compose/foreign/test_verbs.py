import re
import shlex

import pytest

from lmtrain.cli.command_table import VERBS
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.foreign.verbs import called_verbs
from lmtrain.run.compose.paths import without


@pytest.mark.parametrize("verb", called_verbs())
def test_a_verb_of_others_is_none_of_ours_and_its_answer_is_a_command(verb: str) -> None:
    assert verb not in VERBS
    for command in re.findall(r"`lmtrain ([^`]*)`", called_verbs()[verb]):
        ours, *words = shlex.split(command)
        assert ours in VERBS
        if ours == "train" and "-m" not in words:
            compose_config(without(words, ["init_from"]))
