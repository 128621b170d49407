from lmtrain.composition.command_line.override_words import key_of, without


def test_a_key_is_told_without_its_sign_and_value() -> None:
    assert [key_of(word) for word in ("a.b=c=d", "+a.b=1", "++a=2", "~a.c")] == ["a.b", "a.b", "a", "a.c"]


def test_a_name_takes_along_all_below_it_and_nothing_beside_it() -> None:
    words = ["run.name=a", "run.names=b", "+run.name.x=1", "~budget", "runs=2"]
    assert without(words, ("run.name", "budget")) == ["run.names=b", "runs=2"]
