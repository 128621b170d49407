from types import SimpleNamespace

from lmtrain.run.compose.choices import Choices, told_apart


def test_a_trial_s_words_are_those_that_not_all_of_its_sweep_have() -> None:
    assert told_apart([["a=1", "b=2"], ["a=1", "b=3"]]) == [["b=2"], ["b=3"]]
    assert told_apart([["a=1"]]) == [[]]
    assert told_apart([]) == []


def test_a_title_names_a_swept_model_once() -> None:
    found = SimpleNamespace(overrides=SimpleNamespace(task=[]), runtime=SimpleNamespace(choices={"model": "llama"}))
    choices = Choices(found)
    assert choices.title == "llama"
    choices.swept = ["model=llama", "optimizer=muon"]
    assert choices.title == "llama, optimizer=muon"
