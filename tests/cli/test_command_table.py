import pytest

from lmtrain.cli.command_table import VERBS
from lmtrain.run.schema.signatures import setting_names


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_s_function_takes_words_and_the_name_of_its_program(verb) -> None:
    assert {"words", "program"} <= setting_names(VERBS[verb][0].replace(":", "."))
