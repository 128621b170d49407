import pytest

from tests.composition.command_line.test_compose import refusal


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("batch=8", "batch=8 is one value, and batch has context_tokens, tokens_per_step, "),
        ("run=notes", "run=notes is one value, and run has name, root, "),
        ("sweep=tpe", "sweep=tpe is one value, and sweep has sampler, trials, "),
    ],
)
def test_one_value_in_the_place_of_several_keys_is_refused(word, message):
    said = refusal(word)
    assert said.startswith(message)
    assert said.endswith(f"; write {word.partition('=')[0]}.KEY={word.partition('=')[2]}.")


@pytest.mark.parametrize("word", ["~optimizer", "~model", "~optimizer=muon"])
def test_a_run_without_one_of_its_groups_is_refused(word):
    assert refusal(word) == f"{word}: every run has {word[1:].partition('=')[0]}; nearest valid: without this word."
